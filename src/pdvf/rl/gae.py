"""Generalised advantage estimation with the right treatment of the two ways in which an episode stops."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array


def advantages(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    stopped: Array,
    discount: float,
    gae_lambda: float,
) -> Array:
    """Advantages [T, n] of T steps; all arguments are [T, n].

    `next_values` are the critic's values of the observation after each step, before any reset. Where the task
    `terminated` nothing follows, so the next value does not count. Where the episode `stopped`, for that reason or
    because its time was up, the next row belongs to another episode, so no advantage flows back across.
    """
    delta = rewards + discount * next_values * (1.0 - terminated) - values

    def back(following: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, stopped_t = row
        advantage = delta_t + discount * gae_lambda * (1.0 - stopped_t) * following
        return advantage, advantage

    _, result = jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, stopped), reverse=True, unroll=8)
    return result
