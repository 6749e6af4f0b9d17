"""Imagined episodes against played ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.config import ImagineOptions, ValueOptions
from pdvf.core import fitting as fit
from pdvf.core.arrays import Scaler
from pdvf.engines import MujocoCEngine, NativeEngine
from pdvf.families import AntWind, Spaceship, Swimmer
from pdvf.families.base import ImaginableFamily
from pdvf.families.builtin.ant_wind import AntWindOptions
from pdvf.families.builtin.spaceship import SpaceshipOptions
from pdvf.families.builtin.swimmer import SwimmerOptions
from pdvf.methods.base import Feedback
from pdvf.methods.imagine import model
from pdvf.methods.imagine.plan import candidates, hill_climb, imagine
from pdvf.methods.imagined import ImaginingAgent
from pdvf.methods.play import play_agent
from pdvf.paper import aggregate
from pdvf.paper.adapter import Adapter
from pdvf.paper.aggregate import ReturnScale
from pdvf.paper.trajectories import collect
from pdvf.rl.networks import make_actor_critic
from tiny import make_body, relaxed, same_scale

OPTIONS = ImagineOptions(members=2, hidden_numbers=2, width=32)


class Pushed:
    """A ship that drifts with a hidden wind: s' = s + 0.1 a + wind, |wind| = 0.1; it earns its place along x."""

    name = "pushed"
    context_names = ("angle",)
    horizon = 12
    probe_steps = 1

    def __init__(self):
        box = Spaceship(SpaceshipOptions()).observation
        self.observation = type(box)(-np.ones(2, np.float32), np.ones(2, np.float32))
        self.action = self.observation

    def initial_state(self, key, context):
        return jax.random.uniform(key, (2,), minval=-0.5, maxval=0.5)

    def observe(self, state):
        return state

    def transition(self, context, state, action):
        wind = 0.1 * jnp.stack([jnp.cos(context[0]), jnp.sin(context[0])])
        after = state + 0.1 * jnp.clip(action, -1.0, 1.0) + wind
        reward, ended = self.reward_and_done(state, action, after, jnp.zeros(()))
        return after, reward, ended

    def reward_and_done(self, before, action, after, time):
        return after[0], after[1] > 2.0


@pytest.fixture(scope="module")
def learned() -> Iterator[Any]:
    """A family, its engine and two models that have learned from angles 0 to 4."""
    family: Any = Pushed()
    engine = NativeEngine(family)
    angles = jnp.linspace(0.0, 4.0, 9)[:, None]
    optimiser = fit.cosine_adam(3e-3, 1200)

    def data(key):
        actor, _ = make_actor_critic(family.observation, family.action, 8, key)
        return collect(engine, angles, 4, 0, actor, key)

    def train(trajectories, key):
        def error(m, k, held_out):
            return model.loss(m, trajectories, 1, 32, k, held_out)

        begun = fit.start(model.make(trajectories, OPTIONS, key), optimiser, key)
        return fit.advance(begun, optimiser, lambda m, k: error(m, k, False), lambda m, k: error(m, k, True), 1200)

    with relaxed():
        trajectories = jax.vmap(data)(jax.random.split(jax.random.key(0), 4))
        trained, metrics = jax.jit(jax.vmap(train, in_axes=(None, 0)))(
            trajectories, jax.random.split(jax.random.key(1), OPTIONS.members)
        )
        assert float(metrics["held_out_loss"].max()) < 1e-3
        yield family, engine, trained.best


def test_imagined_returns_are_those_that_are_played(learned):
    """Also for a wind of an angle that no training environment has."""
    family, engine, models = learned
    body = make_body(family.observation, family.action, 3, jax.random.key(2))
    context = jnp.array([[5.2]])
    z_pi = candidates(jax.random.normal(jax.random.key(3), (5, 3)), 16, jax.random.key(4))

    def both(z):
        probed = body.begin(engine, context, jax.random.key(5))
        played, _ = body.finish(engine, context, probed, z[None], jax.random.key(6))
        steps = jax.tree.map(lambda x: x[:, 0], probed.steps)
        seen = steps.observation, steps.action, steps.next_observation, steps.valid
        hidden = jax.vmap(lambda m: m.infer(*seen))(models)
        at = steps.next_observation[-1]
        return played[0] - probed.episodes.returns[0], imagine(
            family, models, hidden, body.decoder, z, at, 1, family.horizon - 1
        )

    played, imagined = jax.jit(jax.vmap(both))(z_pi)
    assert float(jnp.std(played)) > 0.05
    np.testing.assert_allclose(imagined, played, atol=0.15 * float(jnp.std(played)) + 0.1)
    assert np.corrcoef(imagined, played)[0, 1] > 0.95


def test_evidence_of_several_steps_adds_up(learned):
    _, _, models = learned
    one = jax.tree.map(lambda x: x[0], models)
    s, a, following = jax.random.normal(jax.random.key(7), (3, 5, 2))
    valid = jnp.array([True, True, False, True, True])
    parts = [one.evidence(s[i, None], a[i, None], following[i, None], valid[i, None]) for i in range(5)]
    summed = jax.tree.map(lambda *x: jnp.sum(jnp.stack(x), axis=0), *parts)
    np.testing.assert_allclose(one.solve(summed), one.infer(s, a, following, valid), rtol=1e-4)


@pytest.fixture(scope="module")
def agents(learned) -> Any:
    """An agent that keeps its first choice and one that makes it again at every step, with a poor first choice."""
    family, _, models = learned
    body = make_body(family.observation, family.action, 3, jax.random.key(2))
    only = jnp.array([[1.0, 0.0, 0.0]])
    value = aggregate.make_members(same_scale(2), 3, 3, ValueOptions(members=1, hidden=4), jax.random.key(3))
    scale = ReturnScale(jnp.zeros(()), jnp.ones(()), jnp.ones(()))
    adapter = Adapter(body, value, scale, jnp.eye(3), only)
    moves = 0.5 * jax.random.normal(jax.random.key(8), (1, 64, 3))
    made = []
    for renewed in (0, 16):
        options = replace(OPTIONS, favourites=64, rounds=1, renewed=renewed)
        made.append(ImaginingAgent(adapter, models, only, moves[:, :1] if not renewed else moves, family, options))
    return made


def test_choosing_again_at_every_step_earns_more(learned, agents):
    _, engine, _ = learned
    contexts = jnp.linspace(4.2, 6.2, 8)[:, None]  # winds that nobody has trained in
    first, again = (
        jax.jit(lambda agent: play_agent(engine, agent, contexts, None, jax.random.key(9)))(agent) for agent in agents
    )
    assert np.all(np.asarray(again) > np.asarray(first) + 0.05)


def test_an_agent_remembers_what_every_step_has_shown(learned, agents):
    """Its evidence is that of all steps but the last, which the next call of `act` shows it."""
    _, _, models = learned
    agent = agents[1]
    seen = jax.random.uniform(jax.random.key(10), (4, 2), minval=-0.5, maxval=0.5)
    memory = agent.begin_episode(seen[0], None)
    made, action, first = [], jnp.zeros(2), jnp.ones(())
    for observation in seen:
        action, memory = agent.act(memory, observation, Feedback(action, jnp.zeros(()), first))
        made.append(action)
        first = jnp.zeros(())
    assert int(memory.time) == 4
    one = jax.tree.map(lambda x: x[1], models)
    expected = one.evidence(seen[:3], jnp.stack(made[:3]), seen[1:], jnp.ones(3, bool))
    np.testing.assert_allclose(memory.evidence.left[1], expected.left, rtol=1e-4)
    np.testing.assert_allclose(memory.evidence.right[1], expected.right, rtol=1e-4, atol=1e-6)


def test_candidates_are_unit_vectors_of_the_bank_and_between():
    bank = jnp.eye(3)[:2]
    drawn = np.asarray(candidates(bank, 11, jax.random.key(0)))
    assert drawn.shape == (11, 3)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, atol=1e-5)
    own = drawn[:6]
    assert all(any(np.allclose(row, one) for one in np.asarray(bank)) for row in own)


def test_climbing_takes_the_best_and_then_the_best_around_it():
    """Towards (1, 0): (0.8, 0.6) is the better of two, a move turns it to (1, 0), later ones lead away from it."""

    def score(z):
        return jnp.where(z[1] < -0.9, jnp.nan, z[0])

    tried = jnp.array([[0.8, 0.6], [0.6, 0.8], [0.0, -1.0]])
    np.testing.assert_allclose(hill_climb(score, tried, jnp.zeros((0, 1, 2))), [0.8, 0.6], rtol=1e-6)
    moves = jnp.array([[[0.2, -0.6], [-0.8, 0.4]], [[0.0, 0.5], [-1.0, -9.0]]])
    np.testing.assert_allclose(hill_climb(score, tried, moves), [1.0, 0.0], atol=1e-6)


@pytest.mark.parametrize(
    "family",
    [Spaceship(SpaceshipOptions()), Swimmer(SwimmerOptions(horizon=20)), AntWind(AntWindOptions(horizon=20))],
    ids=lambda family: family.name,
)
def test_judged_rewards_are_nearly_those_of_the_simulator(family):
    """What a step earns, told from observations: exact for the ship, from mean speeds for the others."""
    assert isinstance(family, ImaginableFamily)
    if family.name == "spaceship":
        engine: Any = NativeEngine(family)
    else:
        pytest.importorskip("mujoco")
        engine = MujocoCEngine(family)
    contexts = jnp.asarray(family.train(0).contexts[:3])
    scaler = Scaler.from_box(family.action)

    @jax.jit
    def path():
        begun = engine.reset(jax.random.split(jax.random.key(0), 3), contexts)

        def step(carry, row):
            states, before = carry
            t, key = row
            action = jax.random.uniform(key, (3, family.action.size), minval=-1.0)
            states, outcome = engine.step(contexts, states, scaler.unscale(action))
            judged = jax.vmap(family.reward_and_done, in_axes=(0, 0, 0, None))(
                before, action, outcome.observation, t + 1
            )
            return (states, outcome.observation), (judged, (outcome.reward, outcome.terminated))

        keys = jax.random.split(jax.random.key(1), 15)
        return jax.lax.scan(step, begun, (jnp.arange(15), keys))[1]

    with relaxed():
        (reward, ended), (expected, over) = jax.tree.map(np.asarray, path())
    assert (ended == over).all()
    tolerance = 1e-6 if family.name == "spaceship" else 0.5 * expected.std() + 1e-3
    assert np.abs(reward - expected).max() < max(tolerance, 1e-6)
    if family.name != "spaceship":
        assert np.corrcoef(reward.ravel(), expected.ravel())[0, 1] > 0.95
