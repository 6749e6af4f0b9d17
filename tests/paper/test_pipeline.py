"""The whole method on the smallest possible run: shapes, determinism, what may see the test environments, returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.config import ValueOptions, to_dict
from pdvf.engines import NativeEngine
from pdvf.experiment.progress import ignore
from pdvf.experiment.stages import run_phase
from pdvf.experiment.store import RunStore
from pdvf.families import Split
from pdvf.families.builtin.spaceship import Spaceship
from pdvf.paper.adapter import Adapter, adapt_episodes
from pdvf.paper.aggregate import ReturnScale, make_members
from pdvf.paper.pipeline import PHASES, Problem, artefact_shapes
from tiny import TINY, make_body, relaxed, same_scale

ARTEFACTS = [name for spec in PHASES.values() for name, untrained in spec.untrained.items() if untrained]
LEARNING = ("train", "collect", "embed", "fit")  # the phases that learn from training environments alone
LEARNED = ("policies", "trajectories", "dynamics", "policy", "adapter")


@pytest.fixture(scope="module")
def shapes() -> dict[str, Any]:
    with relaxed():
        return {name: artefact_shapes(Problem(TINY))[name] for name in ARTEFACTS}


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory, shapes) -> RunStore:
    return run(tmp_path_factory.mktemp("tiny") / "run", shapes)


@pytest.fixture
def checks_off() -> Iterator[None]:
    with relaxed():
        yield


def run(
    folder: Path, shapes: dict[str, Any], phases: Sequence[str] = tuple(PHASES), given: Mapping[str, Any] | None = None
) -> RunStore:
    """Runs phases in a new folder, with these artefacts there already."""
    store, problem = RunStore.create(folder, to_dict(TINY), "test"), Problem(TINY)
    for name, tree in (given or {}).items():
        store.save(name, tree)
    with relaxed(), store.lock():
        for name in phases:
            spec = PHASES[name]
            phase = spec.make(problem, *(store.load(needed, shapes[needed]) for needed in spec.needs))
            run_phase(store, phase, spec.leaves, spec.needs, ignore)
    return store


def bits(store: RunStore, names: Sequence[str]) -> dict[str, str]:
    return {name: store.manifest(name)["sha256"] for name in names}


def load(store: RunStore, shapes: dict[str, Any], name: str) -> Any:
    return store.load(name, shapes[name]) if name in shapes else store.load_arrays(name)


# Shapes


def test_every_artefact_has_the_shape_that_the_configuration_says(tiny_run, shapes):
    for name in ARTEFACTS:
        arrays = tiny_run.manifest(name)["arrays"]
        leaves = jax.tree.leaves_with_path(shapes[name])
        expected = {
            jax.tree_util.keystr(path, simple=True, separator="."): [str(leaf.dtype), list(leaf.shape)]
            for path, leaf in leaves
        }
        assert arrays == expected
        for leaf in jax.tree.leaves(load(tiny_run, shapes, name)):
            assert np.isfinite(np.asarray(leaf)).all()


def test_shapes_by_hand(shapes):
    """2 checkpoints, 3 + 1 environments, 1 policy each; 2 models; embeddings of 3; episodes of 8 steps."""
    assert shapes["policies"].log_std.shape == (2, 3, 1, 2)
    assert shapes["upper_bound"].log_std.shape == (1, 1, 2)
    assert shapes["trajectories"].observation.shape == (6, 3, 2, 8, 2)
    assert shapes["trajectories"].returns.shape == (6, 3, 2)
    adapter = shapes["adapter"]
    assert adapter.value.third.weight.shape == (2, 5 * 2, 9, 8)  # 5 snapshots of 2 members
    assert shapes["initial_adapter"].value.third.weight.shape == (2, 2, 9, 8)  # 2 members
    assert adapter.body.probe.log_std.shape == (2, 2)
    assert adapter.train_z_d.shape == (2, 3, 3)
    assert adapter.train_z_pi.shape == (2, 6 * 3, 3)


def test_training_changes_policies_and_models(tiny_run, shapes):
    policies = load(tiny_run, shapes, "policies")
    weight = np.asarray(policies.layers[0].weight)
    assert (weight[0] != weight[1]).any(axis=(1, 2, 3)).all()  # from one checkpoint to the next
    assert (weight[:, 0] != weight[:, 1]).any()
    for name in ("dynamics", "policy"):
        weight = np.asarray(load(tiny_run, shapes, name).encoder.element.weight)
        assert (weight[0] != weight[1]).any()
    adapter, policy = load(tiny_run, shapes, "adapter"), load(tiny_run, shapes, "policy")
    before, after = (np.asarray(d.network.layers[0].weight) for d in (policy.decoder, adapter.body.decoder))
    assert (before != after).any()  # by data aggregation
    for name in ("dynamics",):
        trained = jax.tree.leaves(load(tiny_run, shapes, name))
        for a, b in zip(trained, jax.tree.leaves(adapter.body.dynamics), strict=True):
            np.testing.assert_array_equal(a, b)
    initial = load(tiny_run, shapes, "initial_adapter")
    for a, b in zip(jax.tree.leaves(initial.body), jax.tree.leaves(adapter.body), strict=True):
        np.testing.assert_array_equal(a, b)
    members = np.asarray(initial.value.third.weight)  # [2, 2, ...]
    stages = np.asarray(adapter.value.third.weight).reshape(2, 5, *members.shape[1:])
    same = (stages == members[:, None]).all(axis=(2, 3, 4))  # W before aggregation is one of the two stages that it had
    assert same.any(axis=1).all()
    assert not same.all()
    np.testing.assert_allclose(np.linalg.norm(adapter.train_z_d, axis=-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(adapter.train_z_pi, axis=-1), 1.0, atol=1e-5)


# Determinism


@pytest.mark.slow  # test_resume compares runs too
def test_second_run_gives_the_same_bits(tiny_run, shapes, tmp_path):
    again = run(tmp_path / "run", shapes)
    assert bits(again, ARTEFACTS) == bits(tiny_run, ARTEFACTS)
    for name in ARTEFACTS:
        assert again.info(name)["history"] == tiny_run.info(name)["history"]


# Training and test environments


def no_test_environments(*_: Any) -> Split:
    raise AssertionError("somebody asked for the test environments")


def other_test_environments(family: Spaceship, seed: int) -> Split:
    del family, seed
    return Split((99,), np.array([[0.123]], np.float32))


def test_learning_never_asks_for_test_environments(tiny_run, shapes, tmp_path, monkeypatch):
    monkeypatch.setattr(Spaceship, "test", no_test_environments)
    with pytest.raises(AssertionError, match="asked for the test environments"):
        _ = Problem(TINY).everywhere
    blind = run(tmp_path / "run", shapes, LEARNING)
    assert bits(blind, LEARNED) == bits(tiny_run, LEARNED)


def test_policies_of_test_environments_differ_with_these(tiny_run, shapes, tmp_path, monkeypatch):
    monkeypatch.setattr(Spaceship, "test", other_test_environments)
    other = run(tmp_path / "run", shapes, ["bound"])
    assert bits(other, ["upper_bound"]) != bits(tiny_run, ["upper_bound"])


def test_upper_bound_bears_on_nothing_but_its_own_policies(tiny_run, shapes, checks_off):
    spec = PHASES["evaluate"]
    inputs = {name: load(tiny_run, shapes, name) for name in spec.needs}
    inputs["upper_bound"] = jax.tree.map(lambda x: -3 * x + 1, inputs["upper_bound"])
    phase = spec.make(Problem(TINY), *inputs.values())
    made, expected = phase.advance(phase.start(), 0)[0]["evaluation"], load(tiny_run, shapes, "evaluation")
    for name in ("returns", "predicted", "z_pi", "z_d", "value_predicted", "value_actual"):
        np.testing.assert_array_equal(made[name], expected[name])
    np.testing.assert_array_equal(made["transfer"][:3], expected["transfer"][:3])
    assert (np.asarray(made["transfer"])[3:] != np.asarray(expected["transfer"])[3:]).any()


# Returns


def test_adapted_episodes_are_those_of_the_gymnasium_environment(tiny_run, shapes, checks_off):
    problem = Problem(TINY)
    adapter = jax.tree.map(lambda x: x[1], load(tiny_run, shapes, "adapter"))
    keys = jax.random.split(jax.random.key(0))
    play = jax.jit(lambda a: adapt_episodes(problem.engine, a, problem.everywhere, keys[0], keys[1]))
    adapted = play(adapter)
    returns = []
    for e in range(4):
        env = gymnasium.make("pdvf/Spaceship-v0", context=e + 1, options=TINY.environment)
        observation, _ = env.reset(seed=0)
        total, ended = 0.0, False
        for t in range(TINY.environment.horizon):
            assert bool(adapted.steps.valid[t, e]) is not ended
            if ended:
                continue
            np.testing.assert_allclose(observation, adapted.steps.observation[t, e], atol=1e-4)
            force = np.asarray(adapted.steps.action[t, e]) * TINY.environment.force
            observation, reward, terminated, truncated, _ = env.step(force)
            total, ended = total + float(reward), terminated or truncated
        assert ended
        returns.append(total)
    assert np.min(returns) > 0.01
    assert np.ptp(returns) > 0.01
    np.testing.assert_allclose(adapted.returns, returns, rtol=1e-4)
    # Nothing is random in this family, so these are the episodes that were evaluated, too.
    evaluation = load(tiny_run, shapes, "evaluation")
    np.testing.assert_allclose(evaluation["returns"][1], np.tile(np.array(returns)[:, None], 2), rtol=1e-4)
    np.testing.assert_allclose(
        jnp.moveaxis(evaluation["path_observation"][1], 0, 1), adapted.steps.observation, atol=1e-4
    )


def test_evaluated_embeddings_are_the_optimum_of_w(tiny_run, shapes):
    evaluation, adapter = (load(tiny_run, shapes, name) for name in ("evaluation", "adapter"))
    start = jnp.asarray(TINY.environment.start)
    rng = np.random.default_rng(0)
    for seed in range(2):
        one = jax.tree.map(lambda x, s=seed: x[s], adapter)
        predict = jax.jit(jax.vmap(one.predict, (None, 0, None)))
        for e in range(4):
            z_d, z_pi, predicted = (evaluation[name][seed, e, 0] for name in ("z_d", "z_pi", "predicted"))
            assert float(predict(start, z_pi[None], z_d)[0]) == pytest.approx(float(predicted), rel=1e-4)
            others = rng.normal(size=(2000, 3)).astype(np.float32)
            others /= np.linalg.norm(others, axis=-1, keepdims=True)
            values = predict(start, jnp.asarray(others), z_d)
            assert float(values.max()) <= float(predicted) + 1e-5


def test_probing_steps_count_in_the_return(point, checks_off):
    """With a reward at every step the return is the sum over the whole path, the probe's step included."""
    keys = jax.random.split(jax.random.key(5), 4)
    body = make_body(point.observation, point.action, 3, keys[0])
    members = make_members(same_scale(1), 3, 3, ValueOptions(members=2, hidden=8), keys[1])
    scale = ReturnScale(jnp.array(-6.5), jnp.array(6.5), jnp.array(1.0))
    adapter = Adapter(body, members, scale, jnp.zeros((2, 3)), jnp.zeros((2, 3)))
    contexts = jnp.array([[-1.0], [0.5], [1.0]])
    play = jax.jit(lambda a: adapt_episodes(NativeEngine(point), a, contexts, keys[2], keys[3]))
    adapted = play(adapter)
    rewards = np.asarray(contexts)[:, 0] * np.asarray(adapted.steps.next_observation)[..., 0]  # [T, n]
    assert rewards.shape == (8, 3)
    np.testing.assert_allclose(adapted.returns, rewards.sum(axis=0), rtol=1e-5)
    assert np.abs(rewards[0]).min() > 1e-3  # so that leaving the probe out would show
    path = np.asarray(adapted.steps.observation)[..., 0]
    np.testing.assert_allclose(path[1:], np.asarray(adapted.steps.next_observation)[:-1, :, 0], atol=1e-6)
    np.testing.assert_array_equal(path[0], 0.0)
