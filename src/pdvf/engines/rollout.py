"""Plays episodes of anything that acts, from start to end and without restarting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array, Scaler
from pdvf.core.objective import objective_of
from pdvf.engines.base import Engine
from pdvf.families.base import State

Tree = TypeVar("Tree")


class Feedback(NamedTuple):
    """What the last step gave: action [a] scaled, reward [], and 1 when no step came before []."""

    action: Array
    reward: Array
    first: Array


class Transitions(NamedTuple):
    """Steps of episodes, [T, n, ...] as `play` records them; those after an episode's end are not valid."""

    observation: Array
    action: Array  # scaled, as carried out
    reward: Array
    next_observation: Array
    valid: Array


class Episodes(NamedTuple):
    """n episodes under way."""

    simulator: State
    observation: Array  # [n, o]
    alive: Array  # [n]
    score: Any  # an `Objective` [n, ...]
    feedback: Feedback  # [n, ...]
    memory: Any = ()  # [n, ...] of whoever acts

    @property
    def returns(self) -> Array:
        """What the episodes are worth so far [n]."""
        return self.score.worth


Act = Callable[[Any, Array, Feedback, Any], tuple[Array, Any]]
"""From memory [n, ...], observations [n, o], feedback [n, ...] and a key to scaled actions [n, a] and memory; actions
are clipped to -1 and 1. The key is None where `play` is given none."""


def acting(policy: Callable[[Array], Array], noise: Array | float | None = None) -> Act:
    """Acts by a policy without memory, from an observation [o] to a scaled action [a], with Gaussian noise if any."""

    def act(memory: Any, observation: Array, feedback: Feedback, key: Array) -> tuple[Array, Any]:
        mean = jax.vmap(policy)(observation)
        return mean if noise is None else mean + noise * jax.random.normal(key, mean.shape), memory

    return act


def begin(engine: Engine, contexts: Array, key: Array) -> Episodes:
    """Episodes at their start, one for each context [n, c]."""
    n, family = contexts.shape[0], engine.family
    simulator, observation = engine.reset(jax.random.split(key, n), contexts)
    feedback = Feedback(jnp.zeros((n, family.action.size)), jnp.zeros(n), jnp.ones(n))
    return Episodes(simulator, observation, jnp.ones(n, bool), objective_of(family).start(n), feedback)


def play(
    engine: Engine, contexts: Array, episodes: Episodes, act: Act, key: Array | None, steps: int, record: bool = True
) -> tuple[Episodes, Any]:
    """Goes on for some steps; an episode that has ended stays as it is. Gives `Transitions` if `record` is set."""
    scaler = Scaler.from_box(engine.family.action)

    def step(episodes: Episodes, key: Array | None) -> tuple[Episodes, Transitions | None]:
        action, memory = act(episodes.memory, episodes.observation, episodes.feedback, key)
        action = jnp.clip(action, -1.0, 1.0)
        simulator, outcome = engine.step(contexts, episodes.simulator, scaler.unscale(action))
        alive = episodes.alive
        following = Episodes(
            simulator,
            outcome.observation,
            ~outcome.terminated,
            episodes.score.add(outcome.reward, alive),
            Feedback(action, outcome.reward, jnp.zeros_like(episodes.feedback.first)),
            memory,
        )
        following = jax.tree.map(partial(where, alive), following, episodes)
        made = Transitions(episodes.observation, action, outcome.reward, following.observation, alive)
        return following, made if record else None

    keys = None if key is None else jax.random.split(key, steps)
    return jax.lax.scan(step, episodes, keys, length=steps)


def where(condition: Array, a: Array, b: Array) -> Array:
    """Rows of a [n, ...] where the condition [n] holds, else of b."""
    return jnp.where(condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim)), a, b)


def subsample(steps: Tree, valid: Array, kept: int, first: int, key: Array) -> Tree:
    """`kept` steps of each of n episodes, [T, n, ...] to [kept, n, ...] in their order.

    The first ones are among them, the others are drawn from the valid ones [T, n]; only where there are too few of
    these do invalid ones, which come last, fill up.
    """
    time = jnp.arange(valid.shape[0])[:, None]
    rank = jnp.where(time < first, -1.0, jnp.where(valid, jax.random.uniform(key, valid.shape), 2.0))
    chosen = jnp.sort(jnp.argsort(rank, axis=0)[:kept], axis=0)
    return jax.tree.map(lambda x: x[chosen, jnp.arange(x.shape[1])], steps)


def play_from_start(
    engine: Engine, contexts: Array, act: Act, key: Array, steps: int, record: bool = True
) -> tuple[Episodes, Any]:
    """The first steps of an episode for each context [n, c]: the episodes, and their steps if `record` is set."""
    begin_key, play_key = jax.random.split(key)
    return play(engine, contexts, begin(engine, contexts, begin_key), act, play_key, steps, record)


def episode_returns(engine: Engine, contexts: Array, act: Act, key: Array) -> Array:
    """What whole episodes are worth [n], one for each context [n, c]."""
    return play_from_start(engine, contexts, act, key, engine.family.horizon, record=False)[0].returns
