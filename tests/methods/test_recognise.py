"""Telling environments apart by doing nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.config import PlusOptions
from pdvf.engines import Engine, NativeEngine
from pdvf.methods import play_everywhere
from pdvf.methods.brace import holding
from pdvf.methods.experienced import train_by_experience
from pdvf.methods.recognise import Discriminant, discriminant
from pdvf.paper.prober import Body
from pdvf.rl.networks import Actor, make_actor_critic
from tiny import relaxed
from toy import OPTIONS, Force, ToyProblem

ANGLES = np.arange(8) * np.pi / 4


def seen(weak: float, noise: float) -> np.ndarray:
    """What is seen [8, 200, 4] of environments on a circle of radius `weak`.

    The first two numbers are drawn, with a spread of 1; the others are twice these, moved by the environment and by
    some noise.
    """
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(8, 200, 2))
    moved = weak * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=-1)[:, None]
    return np.concatenate([drawn, 2 * drawn + moved + noise * rng.normal(size=drawn.shape)], axis=-1)


def test_a_circle_is_found_below_a_thousand_times_as_much():
    """Environments move what is seen by 0.002; that is seen as a circle, in two directions alone."""
    centre, directions, places = discriminant(seen(weak=0.002, noise=0.001))
    # In each of the two they spread by 0.002 / sqrt(2), sqrt(2) times the noise, so by 2 / 3 after shrinking.
    np.testing.assert_allclose(places.std(axis=0), [2 / 3, 2 / 3, 0, 0], atol=0.05)
    # Neighbours on the circle are alike in distance; those across it lie twice its radius apart.
    apart = np.linalg.norm(places[:, None, :2] - places[None, :, :2], axis=-1)
    opposite = apart[np.arange(8), (np.arange(8) + 4) % 8]
    np.testing.assert_allclose(opposite, 2 * np.sqrt(2) * 2 / 3, rtol=0.1)
    next_to = apart[np.arange(8), (np.arange(8) + 1) % 8]
    np.testing.assert_allclose(next_to, opposite.mean() * np.sin(np.pi / 8), rtol=0.2)
    # The same from single episodes, with noise half as large as the radius: most are nearest to their own or the next.
    found = (seen(0.002, 0.001) - centre) @ directions
    nearest = np.linalg.norm(found[:, :, None] - places, axis=-1).argmin(axis=-1)
    away = np.abs((nearest - np.arange(8)[:, None] + 4) % 8 - 4)
    assert np.mean(away <= 1) > 0.9


def test_nothing_is_found_where_there_is_nothing():
    _, _, places = discriminant(seen(weak=0.0, noise=0.001))
    assert np.all(np.abs(places) < 0.05)


def test_what_one_episode_tells_by_hand():
    """Two environments at -2 and 2, episodes 1 to either side: a variance of 2 within, so r = sqrt(2), and 2 / 3."""
    centre, directions, places = discriminant(np.array([[[-3.0], [-1.0]], [[1.0], [3.0]]]))
    np.testing.assert_allclose(places[:, 0] * np.sign(places[1, 0]), [-2 / 3, 2 / 3], rtol=1e-6)
    np.testing.assert_allclose(np.abs((np.array([3.0]) - centre) @ directions), [1.0], rtol=1e-6)


def test_episodes_that_do_not_vary():
    still = np.repeat(np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])[:, None], 5, axis=1)
    _, _, places = discriminant(still)
    np.testing.assert_allclose(np.abs(places[:, 0]), np.sqrt([1.5, 0.0, 1.5]), atol=1e-4)
    _, _, places = discriminant(np.zeros((3, 5, 2)))
    np.testing.assert_array_equal(places, 0.0)


@pytest.mark.parametrize(("valid", "last"), [((True, True), 5.0), ((True, False), 3.0), ((False, False), 3.0)])
def test_the_first_and_the_last_valid_observation_count(valid, last):
    told = Discriminant(jnp.array([0.5, 0.0]), jnp.array([[1.0, 0.0], [0.0, 10.0]]))
    observation, following = jnp.array([[1.0], [3.0]]), jnp.array([[3.0], [5.0]])
    found = told.encode(observation, jnp.zeros((2, 1)), following, jnp.array(valid))
    np.testing.assert_allclose(found, [0.5, 10.0 * (last - 1.0)])


@dataclass(frozen=True)
class Drift(Force):
    """The hidden number moves the mass a little, whatever is done, and says which push is rewarded."""

    name = "drift"
    context_names = ("drift",)

    def initial_state(self, key: Any, context: Any) -> Any:
        return jnp.concatenate([jax.random.uniform(key, (1,), minval=-0.5, maxval=0.5), jnp.ones(1)])

    def transition(self, context: Any, state: Any, action: Any) -> tuple[Any, Any, Any]:
        moved = state.at[0].add(1e-3 * context[0])
        return moved, context[0] * action[0], jnp.zeros((), bool)


@dataclass(frozen=True)
class DriftProblem(ToyProblem):
    """That family."""

    @cached_property
    def engine(self) -> Engine:
        return NativeEngine(Drift())


class Blind(eqx.Module):
    """A body whose encoder sees nothing, and whose probe must not be played: it pushes left."""

    probe: Actor
    dynamics: Any

    def infer(self, steps):
        return Body.infer(self, steps)


class Known(eqx.Module):
    """What the method needs of an adapter."""

    body: Blind
    train_z_d: jax.Array


def pushing(direction: float) -> Actor:
    """A policy that pushes one way."""
    family = Force()
    actor, _ = make_actor_critic(family.observation, family.action, OPTIONS.ppo.hidden, jax.random.key(0))
    return holding(actor, jnp.full_like(actor.log_std, direction))


@pytest.mark.parametrize(("problem", "told"), [(DriftProblem, True), (ToyProblem, False)])
def test_doing_nothing_shows_a_drift_and_no_gain(problem, told):
    """The drift of one step, 0.002 of the spread of starts, tells the two sides apart; a gain of nothing is nothing."""
    plus = PlusOptions(by="experience", episodes=1, width=0.5, still=True)
    toy = problem(replace(OPTIONS, model_seeds=2, plus=plus))
    policies = [jax.tree.map(lambda x: x[None, None], pushing(d)) for d in (-1.0, -1.0, 1.0, 0.9)]
    actors = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *policies)
    adapter = Known(Blind(jax.tree.map(lambda x: jnp.stack([x, x]), pushing(-1.0)), None), jnp.zeros((2, 4, 1)))
    with relaxed():
        training = train_by_experience(toy, {"policies": actors, "adapter": adapter}, jax.random.key(2))
        agents = training.finish(training.advance(training.start(), 0)[0])["agent-pd-vf-plus"]
        played = play_everywhere(toy.engine, agents, toy.everywhere, 2, False, jax.random.key(3))["honest"]
    hidden = np.asarray(toy.everywhere)[:, 0]
    returns = np.asarray(played).mean(axis=-1)
    if told:  # nothing in the first of nine steps, then a push the right way, 0.9 or 1 to the right
        assert np.all(returns >= 8 * 0.9 * np.abs(hidden) - 1e-4)
    else:  # the same policy everywhere: what it earns on one side it loses on the other
        np.testing.assert_allclose(returns.sum(axis=1), 0.0, atol=1e-4)


def test_one_probe_at_a_time():
    with pytest.raises(ValueError, match=r"plus\.still"):
        PlusOptions(by="experience", still=True, generalist=True)
