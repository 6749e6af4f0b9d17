"""Arrays with bounds, and the map between physical units and numbers of order one."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


class Box(NamedTuple):
    """Bounds of an observation or action, each of shape [n]; infinite where unbounded."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def symmetric(cls, shape: int | tuple[int, ...], bound: float = np.inf) -> Box:
        """From -bound to bound for each component; without bounds unless one is given."""
        high = np.full(shape, bound, np.float32)
        return cls(-high, high)

    @property
    def size(self) -> int:
        """Number of components."""
        return int(self.low.shape[0])


class Scaler(eqx.Module):
    """An affine map between physical units and numbers of order one: scaled = (x - centre) / width."""

    centre: Array
    width: Array

    @classmethod
    def from_box(cls, box: Box) -> Scaler:
        """Bounds become -1 and 1; components without bounds keep their units."""
        bounded = jnp.isfinite(box.low) & jnp.isfinite(box.high)
        low, high = jnp.where(bounded, box.low, -1.0), jnp.where(bounded, box.high, 1.0)
        return cls((low + high) / 2, (high - low) / 2)

    @classmethod
    def from_data(cls, data: Array, weight: Array) -> Scaler:
        """Mean 0 and standard deviation 1 over data [..., n] where weight [...] is not 0."""
        weight = weight[..., None] / jnp.sum(weight)
        axes = tuple(range(data.ndim - 1))
        mean = jnp.sum(weight * data, axes)
        std = jnp.sqrt(jnp.sum(weight * (data - mean) ** 2, axes))
        return cls(mean, jnp.maximum(std, 1e-6))

    def scale(self, x: Array) -> Array:
        """From physical units."""
        return (x - self.centre) / self.width

    def unscale(self, x: Array) -> Array:
        """To physical units."""
        return x * self.width + self.centre
