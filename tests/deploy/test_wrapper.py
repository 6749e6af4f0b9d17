"""A model beside a Gymnasium environment that is not ours."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
from test_belief_runtime import make_agent

import pdvf
from pdvf.deploy.belief_runtime import BeliefAdapter
from pdvf.deploy.export import export
from pdvf.families import GymFamily
from tiny import relaxed


def pendulum(context: dict[str, float] | None = None) -> gymnasium.Env:
    return gymnasium.make("Pendulum-v1", g=(context or {"gravity": 10.0})["gravity"])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """An exported PD-VF-plus for the pendulum that nobody has trained."""
    contexts = [{"gravity": g} for g in (8.0, 10.0, 12.0)]
    family = GymFamily("pendulum", pendulum, contexts, [{"gravity": 11.0}], horizon=30, probe_steps=2)
    path = tmp_path_factory.mktemp("export") / "pendulum.pdvf"
    with relaxed():
        path.write_bytes(export(make_agent(family), family, {}))
    return path


@pytest.fixture
def env(file) -> Iterator[pdvf.AdaptiveWrapper]:
    with pdvf.AdaptiveWrapper(pendulum(), pdvf.Adapter.load(file)) as env:
        yield env


def test_it_acts_as_the_adapter_does_and_says_what_it_infers(env, file):
    alone, adapter = pendulum(), pdvf.Adapter.load(file)
    (observation, _), (seen, info) = alone.reset(seed=3), env.reset(seed=3)
    adapter.reset(observation)
    assert np.isnan(info["adaptation"]["out_of_distribution"])
    for _ in range(30):
        action = adapter.act(observation)
        np.testing.assert_array_equal(env.act(), action)
        np.testing.assert_array_equal(env.act(), action)  # asking changes nothing
        observation, reward, *_ = alone.step(action)
        seen, got, terminated, truncated, info = env.step()
        np.testing.assert_array_equal(seen, observation)
        assert (got, terminated, truncated) == (reward, False, False)
        assert isinstance(adapter, BeliefAdapter)
        np.testing.assert_array_equal(info["adaptation"]["mean"], adapter.mean)
    assert info["adaptation"]["out_of_distribution"] == adapter.out_of_distribution > 0
    assert np.abs(info["adaptation"]["mean"]).max() > 0
    info["adaptation"]["mean"][:] = np.nan  # it is the caller's
    assert np.isfinite(env.adapter.inferred["mean"]).all()
    assert np.isnan(env.reset()[1]["adaptation"]["out_of_distribution"])


def test_it_learns_from_the_action_that_was_carried_out(env, file):
    """The belief is that of an adapter whose transitions have this action in them."""
    env.reset(seed=1)
    first = env.adapter._previous
    _, _, _, _, _ = env.step(np.array([1.5], np.float32))
    assert first is None
    observation, scaled = env.adapter._previous
    np.testing.assert_allclose(scaled, [0.75])  # of bounds -2 and 2
    assert np.isfinite(observation).all()
    untouched = pdvf.AdaptiveWrapper(pendulum(), pdvf.Adapter.load(file))
    untouched.reset(seed=1)
    untouched.step()
    for wrapped in (env, untouched):
        wrapped.act()
    assert np.abs(env.adapter.inferred["mean"] - untouched.adapter.inferred["mean"]).max() > 1e-6


@pytest.mark.parametrize("action", [[np.nan], [1.0, 2.0], "left"])
def test_an_action_that_is_none_is_refused(env, action):
    env.reset(seed=1)
    with pytest.raises(pdvf.AdapterError, match=r"action .*, expected 1 finite numbers"):
        env.step(action)


def test_many_environments_at_once(file):
    make = lambda: pdvf.AdaptiveWrapper(pendulum(), pdvf.Adapter.load(file))  # noqa: E731
    envs = gymnasium.vector.SyncVectorEnv([make, make])
    envs.reset(seed=0)
    *_, info = envs.step(np.zeros((2, 1), np.float32))
    assert info["adaptation"]["mean"].shape == (2, 3)
    envs.close()


def test_environments_that_do_not_fit_are_refused(file):
    adapter = pdvf.Adapter.load(file)
    with pytest.raises(pdvf.AdapterError, match=r"actions go from \[-1.\] to \[1.\], expected \[-2.\] to \[2.\]"):
        pdvf.AdaptiveWrapper(gymnasium.wrappers.RescaleAction(pendulum(), np.float32(-1), np.float32(1)), adapter)
    with pytest.raises(pdvf.AdapterError, match=r"of shapes \(\(2,\), \(1,\)\), expected \(\(3,\), \(1,\)\)"):
        pdvf.AdaptiveWrapper(gymnasium.make("MountainCarContinuous-v0"), adapter)
    with pytest.raises(pdvf.AdapterError, match=r"action space is Discrete\(2\), expected a Box"):
        pdvf.AdaptiveWrapper(gymnasium.make("CartPole-v1"), adapter)
