"""Plays episodes of anything that acts, from start to end and without restarting."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array, Scaler
from pdvf.engines.base import Engine
from pdvf.families.base import State

Act = Callable[[Array, Array], Array]
"""From observations [n, o] and a key to scaled actions [n, a]; they are clipped to -1 and 1."""


Tree = TypeVar("Tree")


class Episodes(NamedTuple):
    """n episodes under way."""

    simulator: State
    observation: Array  # [n, o]
    alive: Array  # [n]
    returns: Array  # [n]


class Steps(NamedTuple):
    """T steps of n episodes, [T, n, ...]; `valid` says which were made before the episode ended."""

    observation: Array
    action: Array  # scaled, as carried out
    next_observation: Array
    valid: Array


def begin(engine: Engine, contexts: Array, key: Array) -> Episodes:
    """Episodes at their start, one for each context [n, c]."""
    n = contexts.shape[0]
    simulator, observation = engine.reset(jax.random.split(key, n), contexts)
    return Episodes(simulator, observation, jnp.ones(n, bool), jnp.zeros(n))


def play(
    engine: Engine, contexts: Array, episodes: Episodes, act: Act, key: Array, steps: int, record: bool = True
) -> tuple[Episodes, Steps | None]:
    """Goes on for some steps; an episode that has ended stays as it is. Steps are kept when `record` is set."""
    scaler = Scaler.from_box(engine.family.action)

    def step(episodes: Episodes, key: Array) -> tuple[Episodes, Steps | None]:
        action = jnp.clip(act(episodes.observation, key), -1.0, 1.0)
        simulator, outcome = engine.step(contexts, episodes.simulator, scaler.unscale(action))
        alive = episodes.alive
        following = Episodes(
            jax.tree.map(lambda new, old: where(alive, new, old), simulator, episodes.simulator),
            where(alive, outcome.observation, episodes.observation),
            alive & ~outcome.terminated,
            episodes.returns + jnp.where(alive, outcome.reward, 0.0),
        )
        made = Steps(episodes.observation, action, following.observation, alive)
        return following, made if record else None

    return jax.lax.scan(step, episodes, jax.random.split(key, steps))


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


def episode_returns(engine: Engine, contexts: Array, act: Act, key: Array) -> Array:
    """Returns [n] of whole episodes, one for each context [n, c]."""
    begin_key, play_key = jax.random.split(key)
    episodes = begin(engine, contexts, begin_key)
    return play(engine, contexts, episodes, act, play_key, engine.family.horizon, record=False)[0].returns
