"""Environments on a circle of dynamics: the context is an angle d (section 4.2)."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from pdvf.families.base import Split


class CircleOptions(Protocol):
    """How many environments there are, how many of them train, and where their angles are."""

    @property
    def environments(self) -> int:
        """Environments on the circle."""
        ...

    @property
    def train_environments(self) -> int:
        """The first so many are for training."""
        ...

    @property
    def sampling(self) -> Literal["grid", "interval"]:
        """On the grid, or drawn from each interval of it."""
        ...


def train(options: CircleOptions, seed: int) -> Split:
    """Environments 1 to 15."""
    return _split(options, seed, slice(0, options.train_environments))


def test(options: CircleOptions, seed: int) -> Split:
    """Environments 16 to 20."""
    return _split(options, seed, slice(options.train_environments, options.environments))


def _split(options: CircleOptions, seed: int, chosen: slice) -> Split:
    numbers = np.arange(1, options.environments + 1)
    offset = np.zeros(numbers.shape)
    if options.sampling == "interval":  # one draw for the whole circle, so that splits never overlap
        offset = np.random.default_rng(seed).uniform(size=numbers.shape)
    angles = (numbers - 1 + offset) * 2 * np.pi / options.environments
    return Split(tuple(int(n) for n in numbers[chosen]), angles[chosen, None].astype(np.float32))
