"""Environments on a circle of dynamics: the context is an angle d (section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tyro.conf import Fixed

from pdvf.families.base import Dial, Split


@dataclass(frozen=True)
class CircleOptions:
    """Environments on a circle of dynamics."""

    environments: int = 20
    """Environments on the circle of dynamics."""
    train_environments: int = 15
    """The first so many are for training, the rest for testing."""
    sampling: Fixed[Literal["grid", "interval"]] = "grid"
    """Angle of environment i: (i - 1) * 2 pi / environments, or drawn uniformly from there to the next."""


class OnCircle:
    """The environments of a family whose options say how many there are and where their angles lie."""

    options: Any  # CircleOptions
    context_names = ("angle",)
    dial_names: tuple[str, str]
    """What a context's angle and the radius of the circle are, in the family's words."""

    @property
    def dials(self) -> tuple[Dial, ...]:
        """The angle, and the radius: a context of two numbers has one of its own."""
        angle, radius = self.dial_names
        usual = self.options.radius
        return Dial(angle, 0.0, float(2 * np.pi), 0.0), Dial(radius, 0.0, 2.0 * usual, usual)

    def train(self, seed: int) -> Split:
        """Environments 1 to 15."""
        return self._split(seed, slice(0, self.options.train_environments))

    def test(self, seed: int) -> Split:
        """Environments 16 to 20."""
        return self._split(seed, slice(self.options.train_environments, self.options.environments))

    def _split(self, seed: int, chosen: slice) -> Split:
        numbers = np.arange(1, self.options.environments + 1)
        offset = np.zeros(numbers.shape)
        if self.options.sampling == "interval":  # one draw for the whole circle, so that splits never overlap
            offset = np.random.default_rng(seed).uniform(size=numbers.shape)
        angles = (numbers - 1 + offset) * 2 * np.pi / self.options.environments
        return Split(tuple(int(n) for n in numbers[chosen]), angles[chosen, None].astype(np.float32))


def radius_of(radius: float, context: Any) -> Any:
    """The radius of the circle: the family's, or the second number of a context that has one."""
    return context[1] if len(context) > 1 else radius


def wind(radius: float, context: np.ndarray) -> np.ndarray:
    """Velocity [3] of a fluid for an angle [1], or for an angle and a speed [2]."""
    return radius_of(radius, context) * np.array([np.cos(context[0]), np.sin(context[0]), 0.0])
