"""MuJoCo engines against MuJoCo itself, against Gymnasium's own environments, and against each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.core.validation import ConfigError
from pdvf.engines import MujocoCEngine, make_engine
from pdvf.engines.mjx_limits import contacts, rows
from pdvf.engines.mujoco_c import double_bits
from pdvf.families import Physics
from pdvf.families.builtin.ant_legs import AntLegs, AntLegsOptions
from pdvf.families.builtin.ant_wind import AntWind, AntWindOptions
from pdvf.families.builtin.spaceship import Spaceship
from pdvf.families.builtin.swimmer import Swimmer, SwimmerOptions
from pdvf.families.mujoco import base_model, model

mujoco = pytest.importorskip("mujoco")
FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS
FAMILIES = [Swimmer(), AntWind(), AntLegs()]
BY_NAME = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@pytest.fixture(autouse=True)
def no_key_checks() -> Iterator[None]:
    """Key-reuse checking does not know callbacks."""
    with jax.debug_key_reuse(False):
        yield


def doubles(states: Any) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(states.bits)).view(np.float64)


def actions(family: Any, steps: int, count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (steps, count, family.action.size)).astype(np.float32)


def begin(family: Any, contexts: np.ndarray):
    engine = MujocoCEngine(family)
    keys = jax.random.split(jax.random.key(0), len(contexts))
    states, observation = jax.jit(engine.reset)(keys, jnp.asarray(contexts))
    return jax.jit(engine.step), states, observation


# The C engine


def apart_from_mj_step(family: Any, steps: int, cold: bool) -> float:
    """Largest difference of positions to `mj_step` after some steps; `cold` clears its warm start before each."""
    contexts = family.train(0).contexts[:3]
    step, states, _ = begin(family, contexts)
    models = [model(family, row) for row in contexts]
    data = [mujoco.MjData(m) for m in models]
    for m, d, start in zip(models, data, doubles(states), strict=True):
        mujoco.mj_setState(m, d, start, FULL)
    for chosen in actions(family, steps, 3):
        states, _ = step(contexts, states, chosen)
        for m, d, action in zip(models, data, chosen, strict=True):
            d.ctrl[:] = action
            if cold:
                d.qacc_warmstart[:] = 0
            mujoco.mj_step(m, d, family.frame_skip)
    qpos, qvel = (np.stack([getattr(d, name) for d in data]) for name in ("qpos", "qvel"))
    np.testing.assert_allclose(states.physics.qvel, qvel, rtol=1e-6 if cold else 1e-4, atol=0 if cold else 1e-4)
    return float(np.abs(doubles(states)[:, 1 : 1 + qpos.shape[1]] - qpos).max())


@BY_NAME
def test_a_hundred_steps_are_those_of_mj_step_to_the_last_bit(family):
    """The solver of the engine starts every step of the agent cold, and so must the one it is compared with."""
    assert apart_from_mj_step(family, 100, cold=True) == 0.0


@pytest.mark.parametrize(("family", "steps"), [(Swimmer(), 100), (AntWind(), 40), (AntLegs(), 40)])
def test_a_warm_start_changes_little(family, steps):
    """Contacts are chaotic: after 100 steps an ant is up to 2e-5 away, after 40 it is not yet."""
    assert apart_from_mj_step(family, steps, cold=False) < 1e-6


@BY_NAME
def test_a_step_is_a_function_of_the_state_to_the_last_bit(family):
    contexts = family.train(0).contexts[:4]
    step, states, _ = begin(family, contexts)
    for chosen in actions(family, 12, 4):
        before, (states, _) = states, step(contexts, states, chosen)
    again, _ = step(contexts[::-1], jax.tree.map(lambda x: x[::-1], before), chosen[::-1])
    assert np.array_equal(np.asarray(again.bits)[::-1], states.bits)


def test_bits_of_doubles():
    numbers = np.array([[0.0, -0.0, 1.0, -1.5, 0.1, 3.4e38, -1.2e-38, 123.456]], np.float32)
    bits = np.ascontiguousarray(np.asarray(double_bits(jnp.asarray(numbers)))).view(np.float64)
    assert np.array_equal(bits, numbers.astype(np.float64))
    assert np.array_equal(np.signbit(bits), np.signbit(numbers))


def test_one_call_for_all_policies(monkeypatch):
    engine, calls = MujocoCEngine(Swimmer()), []
    host = engine._host
    plain = host.step
    monkeypatch.setattr(host, "step", lambda *given: calls.append(given[1].shape[:-1]) or plain(*given))
    contexts = jnp.zeros((3, 5, 1))
    keys = jax.random.split(jax.random.key(0), (3, 5))
    states, _ = jax.vmap(engine.reset)(keys, contexts)
    jax.block_until_ready(jax.jit(jax.vmap(engine.step))(contexts, states, jnp.zeros((3, 5, 2))))
    assert calls == [(3, 5)]


def test_callers_in_several_threads_do_not_meet():
    family = AntWind()
    contexts = np.repeat(family.train(0).contexts[:2], 40, axis=0)  # more than are stepped in the caller's thread
    chosen = actions(family, 5, 80)
    results: dict[int, np.ndarray] = {}

    def work(i: int) -> None:
        step, states, _ = begin(family, contexts)
        for action in chosen:
            states, _ = step(contexts, states, action)
        results[i] = np.asarray(states.bits)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(results) == 4
    assert all(np.array_equal(results[0], results[i]) for i in range(4))


# Gymnasium's own environments


def test_swimmer_without_a_current_is_gymnasiums():
    with Still(Swimmer(SwimmerOptions(radius=1e-30))) as (family, env, step, states):
        _compare_with_gymnasium(family, env, step, states, 60)


def test_ant_without_wind_is_gymnasiums():
    """Gymnasium reads the torso's place from the last stage of the integrator; the rest is the same."""
    family = AntWind(AntWindOptions(radius=1e-30, viscosity=1e-30))
    with Still(family) as (family, env, step, states):
        _compare_with_gymnasium(family, env, step, states, 30)


class Still:
    """Our family and Gymnasium's environment in the same state."""

    def __init__(self, family: Any):
        self.family = family

    def __enter__(self):
        name = {"swimmer": "Swimmer-v5", "ant-wind": "Ant-v5"}[self.family.name]
        more = {} if name == "Swimmer-v5" else {"contact_cost_weight": 0.0, "include_cfrc_ext_in_observation": False}
        self.env = gymnasium.make(name, **more).unwrapped
        self.env.reset(seed=0)
        step, states, _ = begin(self.family, np.zeros((1, 1), np.float32))
        physics = states.physics
        self.env.set_state(np.asarray(physics.qpos[0], np.float64), np.asarray(physics.qvel[0], np.float64))
        return self.family, self.env, step, states

    def __exit__(self, *_: Any) -> None:
        self.env.close()


def _compare_with_gymnasium(family: Any, env: Any, step: Any, states: Any, steps: int) -> None:
    made = 0
    for chosen in 0.5 * actions(family, steps, 1):
        x = env.data.qpos[0]
        states, outcome = step(np.zeros((1, 1), np.float32), states, chosen)
        observation, reward, terminated, _, info = env.step(chosen[0])
        speed = (env.data.qpos[0] - x) / env.dt
        np.testing.assert_allclose(outcome.observation[0], observation, rtol=0, atol=1e-5)
        assert float(outcome.reward[0]) == pytest.approx(reward - info["x_velocity"] + speed, abs=1e-5)
        assert bool(outcome.terminated[0]) == terminated
        made += 1
        if terminated:
            break
    assert made >= 20


def test_an_ant_that_falls_still_earns_its_last_healthy_reward():
    """As in v3; by hand: no movement, action of ones, 1 - 0.5 * 8."""
    family = AntWind()
    low = Physics(jnp.zeros(15).at[2].set(0.19), jnp.zeros(14))
    action = jnp.ones(8)
    assert bool(family.terminated(low, low, action))
    assert float(family.reward(low, low, action)) == pytest.approx(-3.0)
    healthy = Physics(low.qpos.at[2].set(0.2).at[0].set(0.1), low.qvel)
    assert not bool(family.terminated(low, healthy, action))
    assert float(family.reward(low, healthy, action)) == pytest.approx(0.1 / 0.05 - 3.0, rel=1e-5)
    lost = Physics(low.qpos.at[2].set(0.5), low.qvel.at[3].set(jnp.nan))
    assert bool(family.terminated(low, lost, action))


# Contexts


@BY_NAME
def test_every_context_changes_the_physics(family):
    contexts = np.concatenate([family.train(0).contexts, family.test(0).contexts])
    step, states, _ = begin(family, contexts)
    same = jax.tree.map(lambda x: jnp.broadcast_to(x[0], x.shape), states)
    chosen = np.broadcast_to(actions(family, 5, 1), (5, len(contexts), family.action.size))
    for action in chosen:
        same, _ = step(contexts, same, action)
    ends = np.asarray(same.physics.qvel)
    apart = np.abs(ends[:, None] - ends[None]).max(axis=-1)
    assert apart[~np.eye(len(ends), dtype=bool)].min() > 1e-5


@pytest.mark.parametrize("family", [Swimmer(), AntWind()], ids=lambda family: family.name)
def test_opposite_winds_push_in_opposite_directions(family):
    contexts = np.array([[0.0], [np.pi], [np.pi / 2], [3 * np.pi / 2]], np.float32)
    step, states, _ = begin(family, contexts)
    rest = base_model(family).qpos0.astype(np.float32)
    still = jax.tree.map(jnp.zeros_like, states)
    states = still._replace(bits=_bits(family, rest, 4))
    for _ in range(3):
        states, _ = step(contexts, states, np.zeros((4, family.action.size), np.float32))
    x, y = np.asarray(states.physics.qvel)[:, :2].T
    assert x[0] > 1e-4
    assert x[1] == pytest.approx(-x[0], rel=0.05)
    assert y[2] > 1e-4
    assert y[3] == pytest.approx(-y[2], rel=0.05)


def _bits(family: Any, qpos: np.ndarray, count: int):
    host = MujocoCEngine(family)._host
    state = host.at_rest.copy()
    state[host.qpos] = qpos
    return jnp.asarray(np.tile(state.view(np.uint32), (count, 1)))


def test_a_leg_is_as_long_as_it_says_and_mass_follows():
    family = AntLegs()
    lengths = np.array([0.1, 0.2, 0.3, 0.25, 0.2, 0.4, 0.6, 0.5], np.float32)
    made = model(family, lengths)
    names = ("left", "right", "back", "rightback"), ("left", "right", "third", "fourth")
    geoms = [f"{n}_leg_geom" for n in names[0]] + [f"{n}_ankle_geom" for n in names[1]]
    for name, length in zip(geoms, lengths.tolist(), strict=True):
        geom = made.geom(name)
        radius, half = 0.08, length * 2**0.5 / 2
        assert geom.size[:2] == pytest.approx([radius, half], rel=1e-6)
        volume = np.pi * radius**2 * 2 * half + 4 / 3 * np.pi * radius**3  # a capsule
        assert made.body_mass[geom.bodyid[0]] == pytest.approx(5.0 * volume, rel=1e-6)
    ankle = made.body(made.geom("rightback_leg_geom").bodyid[0] + 1)
    assert ankle.pos == pytest.approx([0.25, -0.25, 0.0], abs=1e-7)


def test_bodies_of_ant_legs():
    family = AntLegs()
    train, test = family.train(0), family.test(0)
    assert train.numbers == tuple(range(12))
    assert test.numbers == (12, 13, 14, 15)
    assert np.all(train.contexts[:, :4] == np.float32(0.2))
    kinds = {tuple(sorted(row)) for row in train.contexts[:, 4:].tolist()}
    assert len(kinds) == 12
    assert all(len(set(row)) > 1 for row in kinds)
    assert all(len(set(row[:4])) == len(set(row[4:])) == 1 for row in test.contexts.tolist())


# MJX


def one_step_apart(family: Any, name: str, contexts: np.ndarray, steps: int) -> dict[str, float]:
    """Largest difference to the C engine after one step from the same state, two batches under `vmap`."""
    engine = make_engine(family, name)
    step, states, _ = begin(family, contexts)
    other = jax.jit(jax.vmap(engine.step))
    errors = {"qpos": 0.0, "qvel": 0.0, "reward": 0.0}
    for chosen in actions(family, steps, len(contexts)):
        after, outcome = step(contexts, states, chosen)
        pairs = jax.tree.map(lambda x: np.asarray(x).reshape(2, -1, *x.shape[1:]), (contexts, states.physics, chosen))
        got, got_outcome = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), other(*pairs))
        found = {
            "qpos": got.qpos - np.asarray(after.physics.qpos),
            "qvel": got.qvel - np.asarray(after.physics.qvel),
            "reward": got_outcome.reward - np.asarray(outcome.reward),
        }
        errors = {key: max(errors[key], float(np.abs(value).max())) for key, value in found.items()}
        states = after
    return errors


def test_mjx_agrees_with_c_on_swimmer():
    family = Swimmer(SwimmerOptions(environments=3, train_environments=2))
    contexts = np.concatenate([family.train(0).contexts, family.test(0).contexts[:1], family.train(0).contexts[:1]])
    errors = one_step_apart(family, "mjx", contexts, 5)
    assert errors["qpos"] < 1e-6
    assert errors["qvel"] < 3e-5
    assert errors["reward"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [AntWind(AntWindOptions(cone="elliptic")), AntLegs(AntLegsOptions(cone="elliptic"))], ids=lambda f: f.name
)
def test_mjx_agrees_with_c_on_the_ant(family):
    contexts = np.concatenate([family.train(0).contexts[:2], family.test(0).contexts[-2:]])
    errors = one_step_apart(family, "mjx", contexts, 20)
    assert errors["qpos"] < 1e-4
    assert errors["qvel"] < 5e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [Swimmer(), AntWind(AntWindOptions(cone="elliptic")), AntLegs(AntLegsOptions(cone="elliptic"))],
    ids=lambda f: f.name,
)
def test_warp_agrees_with_c(family):
    pytest.importorskip("warp")
    contexts = np.concatenate([family.train(0).contexts[:2], family.test(0).contexts[-2:]])
    errors = one_step_apart(family, "warp", contexts, 20)
    assert errors["qpos"] < 1e-5
    assert errors["qvel"] < 1e-3


@pytest.mark.slow
def test_lost_contacts_are_no_reward(monkeypatch):
    pytest.importorskip("warp")
    from pdvf.engines import mjx

    family = AntWind()
    context = family.train(0).contexts[:1]
    known = tuple(map(tuple, context.tolist()))
    lying = Physics(jnp.zeros((1, 15)).at[:, 2].set(0.05).at[:, 3].set(1.0), jnp.zeros((1, 14)))
    for room, lost in ((mjx.rows, False), (lambda model: 4, True)):
        monkeypatch.setattr(mjx, "rows", room)
        _, outcome = mjx.MjxEngine(family, known, "warp").step(context, lying, jnp.zeros((1, 8)))
        assert bool(jnp.isnan(outcome.reward[0])) == lost


def test_room_for_contacts_by_hand():
    """12 capsules of two contacts and a sphere on a plane, four rows each (three for a cone), and eight limits."""
    pyramid = base_model(AntWind())
    ellipse = base_model(AntWind(AntWindOptions(cone="elliptic")))
    assert (contacts(pyramid), rows(pyramid)) == (25, 108)
    assert (contacts(ellipse), rows(ellipse)) == (25, 83)
    assert (contacts(base_model(Swimmer())), rows(base_model(Swimmer()))) == (0, 2)


def test_mjx_knows_which_contexts_it_knows():
    from pdvf.engines.mjx import MjxEngine

    index, known = MjxEngine(Swimmer(), ((0.0,), (1.0,)))._table.find(jnp.array([[1.0], [0.5], [0.0]]))
    assert index.tolist() == [1, 0, 0]
    assert known.tolist() == [True, False, True]


# Which engine


def test_engine_by_name():
    assert isinstance(make_engine(Swimmer(), "auto"), MujocoCEngine)
    for family, name in ((Swimmer(), "native"), (Spaceship(), "c"), (Spaceship(), "warp")):
        with pytest.raises(ConfigError, match=f"engine is '{name}', expected auto or one that simulates"):
            make_engine(family, name)
    with pytest.raises(ConfigError, match="engine is 'fast', expected one of auto"):
        make_engine(Swimmer(), "fast")


def test_what_is_not_installed_is_named(monkeypatch):
    import pdvf.families.mujoco as module

    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"engine c needs mujoco, .*: pip install 'pdvf\[mujoco\]'"):
        MujocoCEngine(Swimmer(SwimmerOptions(noise=0.2)))._host  # noqa: B018
    with pytest.raises(ConfigError, match=r"needs mujoco"):
        Swimmer().base()


def test_numbers_that_differ_are_found():
    from pdvf.engines.mjx import _differing

    legs = AntLegs()
    made = [model(legs, row) for row in legs.test(0).contexts]
    found = _differing(made)
    assert {"geom_size", "geom_pos", "geom_rbound", "geom_aabb", "body_mass", "body_inertia", "body_pos"} <= found
    assert not any(name.startswith(("cam_", "light_", "stat.")) for name in found)
    wind = AntWind()
    assert _differing([model(wind, row) for row in wind.train(0).contexts]) == {"opt.wind"}
