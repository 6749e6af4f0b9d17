"""Running mean and variance, and what rewards are scaled by."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array


class RunningMeanStd(NamedTuple):
    """How many [], mean [k] and variance [k] of what was seen so far."""

    seen: Array
    mean: Array
    variance: Array

    @classmethod
    def none(cls, size: int = 1) -> RunningMeanStd:
        """Nothing was seen."""
        return cls(jnp.zeros(()), jnp.zeros(size), jnp.ones(size))

    @property
    def std(self) -> Array:
        """Standard deviation [k]."""
        return jnp.sqrt(self.variance)


def update_stats(stats: RunningMeanStd, new: Array) -> RunningMeanStd:
    """With more data [..., k]: mean and variance of the two sets together."""
    flat = new.reshape(-1, new.shape[-1])
    count, mean, variance = float(flat.shape[0]), jnp.mean(flat, axis=0), jnp.var(flat, axis=0)
    total = stats.seen + count
    share = count / total
    apart = mean - stats.mean
    return RunningMeanStd(
        total,
        stats.mean + share * apart,
        (1 - share) * stats.variance + share * variance + share * (1 - share) * apart**2,
    )


def discounted_returns(before: Array, rewards: Array, stopped: Array, discount: float) -> tuple[Array, Array]:
    """Sums [n] and [T, n] of an episode's rewards so far, in which the past is discounted, not the future."""

    def step(carry: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, ended = row
        now = discount * carry + reward
        return now * (1.0 - ended), now

    return jax.lax.scan(step, before, (rewards, stopped))
