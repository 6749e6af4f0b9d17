"""A family of the user's own, from a function that makes a Gymnasium environment for a context.

    from pdvf.families.own import GymFamily

    my_family = GymFamily(
        name="pendulum",
        make_env=lambda context: make_pendulum(**context),
        train_contexts=[{"gravity": 8.0, "mass": 0.9}, ...],
        test_contexts=[{"gravity": 9.0, "mass": 1.1}, ...],
        horizon=200,
        probe_steps=5,
    )

Then `pdvf run mypackage.mymodule:my_family --preset quick`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pdvf.checked import ConfigError, require
from pdvf.families.base import Box, Split

Context = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class GymFamily:
    """Environments of Gymnasium that differ in named numbers."""

    name: str
    make_env: Callable[[dict[str, float]], Any]
    """From a context to a gymnasium.Env; called in one process, often."""
    train_contexts: Sequence[Context]
    test_contexts: Sequence[Context]
    horizon: int
    """Steps after which an episode ends; the environment itself may end it earlier."""
    probe_steps: int = 1
    """N_d: steps at the start of an episode from which the dynamics are inferred."""

    def __post_init__(self) -> None:
        require(bool(self.train_contexts), "train_contexts", self.train_contexts, "at least two contexts")
        require(bool(self.test_contexts), "test_contexts", self.test_contexts, "at least one context")
        names = set(self.context_names)
        for context in (*self.train_contexts, *self.test_contexts):
            require(set(context) == names, "context", dict(context), f"one with the names {sorted(names)}")
        both = [c for c in self._rows(self.test_contexts).tolist() if c in self._rows(self.train_contexts).tolist()]
        require(not both, "test_contexts", both, "none that is also in train_contexts: a test must be of something new")
        whole = isinstance(self.horizon, int) and isinstance(self.probe_steps, int)
        require(
            whole and 0 < self.probe_steps < self.horizon,
            "probe_steps and horizon",
            (self.probe_steps, self.horizon),
            "whole numbers, the first above 0 and below the second",
        )

    @property
    def context_names(self) -> tuple[str, ...]:
        """Names of the context's numbers, as the first training context has them."""
        return tuple(self.train_contexts[0])

    @property
    def observation(self) -> Box:
        """Bounds of the observation, flat."""
        return self._spaces[0]

    @property
    def action(self) -> Box:
        """Bounds of the action, flat."""
        return self._spaces[1]

    def train(self, seed: int) -> Split:
        """Training environments, numbered from 1."""
        del seed
        return Split(tuple(range(1, len(self.train_contexts) + 1)), self._rows(self.train_contexts))

    def test(self, seed: int) -> Split:
        """Test environments, numbered after those of training."""
        del seed
        first = len(self.train_contexts) + 1
        return Split(tuple(range(first, first + len(self.test_contexts))), self._rows(self.test_contexts))

    def make(self, context: dict[str, float]) -> Any:
        """An environment."""
        return self.make_env(context)

    def _rows(self, contexts: Sequence[Context]) -> np.ndarray:
        return np.array([[float(c[name]) for name in self.context_names] for c in contexts], np.float32)

    @cached_property
    def _spaces(self) -> tuple[Box, Box]:
        environment = self.make_env(dict(self.train_contexts[0]))
        try:
            return _box("observation", environment.observation_space), _box("action", environment.action_space)
        finally:
            environment.close()


def _box(what: str, space: Any) -> Box:
    import gymnasium

    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        advice = {
            "observation": "wrap it with gymnasium.wrappers.FlattenObservation",
            "action": "PD-VF needs continuous actions",
        }
        raise ConfigError(f"{what} space is {space}, expected a Box with one axis: {advice[what]}")
    if what == "action" and not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ConfigError(f"action space is {space}, expected finite bounds: wrap it with RescaleAction")
    return Box(np.asarray(space.low, np.float32), np.asarray(space.high, np.float32))
