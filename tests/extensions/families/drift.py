"""A built-in family in one file: a point on a line is carried along by a hidden drift and should stay at 0."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Box
from pdvf.core.validation import episode
from pdvf.families.base import Split, Timed
from pdvf.families.registry import FamilySpec


@dataclass(frozen=True)
class DriftOptions:
    """Constants of the drift."""

    fastest: float = 0.5
    """Speed of the fastest drift, in places a step."""
    horizon: int = 8
    """Steps after which an episode ends."""
    probe_steps: int = 1
    """N_d."""

    def __post_init__(self) -> None:
        episode(self)


@dataclass(frozen=True)
class Drift(Timed):
    """A point on a line."""

    options: DriftOptions = field(default_factory=DriftOptions)
    name = "drift"
    context_names = ("speed",)
    observation = Box(-np.full(1, 8.0, np.float32), np.full(1, 8.0, np.float32))
    action = Box(-np.ones(1, np.float32), np.ones(1, np.float32))

    def train(self, seed: int) -> Split:
        return Split((1, 2, 3), self.options.fastest * np.array([[-0.5], [0.0], [0.5]], np.float32))

    def test(self, seed: int) -> Split:
        return Split((4,), np.full((1, 1), self.options.fastest, np.float32))

    def initial_state(self, key: Array, context: Array) -> Array:
        return jnp.zeros(1)

    def observe(self, state: Array) -> Array:
        return state

    def transition(self, context: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        state = state + context + jnp.clip(action, -1.0, 1.0)
        return state, -jnp.abs(state[0]), jnp.zeros((), bool)


FAMILY = FamilySpec(Drift, DriftOptions, "a point that drifts (4 environments, 1 for testing)", {})
