"""Trajectories of every kept policy in every training environment."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.engines.base import Engine
from pdvf.engines.rollout import acting, begin, play, subsample
from pdvf.rl.networks import Actor


class Trajectories(NamedTuple):
    """Episodes of C policies in E environments, J each: [C, E, J, T, ...], whole or thinned to T steps.

    The policies acted with exploration noise, so that the dynamics are seen around their paths; `decision` is what
    each policy would have done without it, which is what the policy autoencoder is to reproduce.
    """

    observation: Array  # [C, E, J, T, o]
    action: Array  # [C, E, J, T, a] scaled, as carried out
    decision: Array  # [C, E, J, T, a] scaled, the policy's mean inside the bounds
    next_observation: Array  # [C, E, J, T, o]
    valid: Array  # [C, E, J, T]
    returns: Array  # [C, E, J]


def collect(engine: Engine, contexts: Array, episodes: int, kept: int, actor: Actor, key: Array) -> Trajectories:
    """J episodes of one policy in each context [E, c]: the leading axis C is left to `vmap`.

    Of each episode the first N_d steps and others at random are kept, `kept` in all, or everything if that is 0.
    """
    begin_key, play_key = jax.random.split(key)
    flat = jnp.repeat(contexts, episodes, axis=0)

    act = acting(actor, jnp.exp(actor.log_std))
    ended, steps = play(engine, flat, begin(engine, flat, begin_key), act, play_key, engine.family.horizon)
    if kept:
        steps = subsample(steps, steps.valid, kept, engine.family.probe_steps, jax.random.fold_in(play_key, 1))

    def arrange(x: Array) -> Array:
        """[T, E * J, ...] to [E, J, T, ...]."""
        return jnp.moveaxis(x.reshape(x.shape[0], contexts.shape[0], episodes, *x.shape[2:]), 0, 2)

    decision = jax.vmap(jax.vmap(actor.act))(steps.observation)
    return Trajectories(
        arrange(steps.observation),
        arrange(steps.action),
        arrange(decision),
        arrange(steps.next_observation),
        arrange(steps.valid),
        ended.returns.reshape(contexts.shape[0], episodes),
    )


def choose(trajectories: Trajectories, count: int, key: Array, held_out: bool) -> Trajectories:
    """A random batch of episodes [count, T, ...]; even episodes train, odd ones are held out."""
    policies, environments, episodes = trajectories.returns.shape
    limits = jnp.array([policies, environments, episodes // 2])
    p, e, j = jax.random.randint(key, (3, count), 0, limits[:, None])
    return jax.tree.map(lambda x: x[p, e, 2 * j + int(held_out)], trajectories)


def training_episodes(trajectories: Trajectories) -> int:
    """How many episodes train."""
    policies, environments, episodes = trajectories.returns.shape
    return policies * environments * (episodes // 2)
