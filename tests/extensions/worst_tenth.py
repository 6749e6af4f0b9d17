"""An objective in one file: an episode is worth its return, several together what the worst tenth of them are."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp

from pdvf.core.arrays import Array


class WorstTenth(NamedTuple):
    """The sum of rewards; over episodes the mean of the worst tenth, one at least."""

    worth: Array

    @classmethod
    def start(cls, n: int) -> WorstTenth:
        return cls(jnp.zeros(n))

    def add(self, reward: Array, alive: Array | bool) -> WorstTenth:
        return WorstTenth(self.worth + jnp.where(alive, reward, 0.0))

    @staticmethod
    def summary(worths: Array, axis: int) -> Array:
        worst = jnp.moveaxis(jnp.sort(worths, axis=axis), axis, 0)
        return jnp.mean(worst[: math.ceil(worst.shape[0] / 10)], axis=0)
