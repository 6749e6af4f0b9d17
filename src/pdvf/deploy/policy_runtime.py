"""Policies without JAX that do not probe: one that sees observations alone, and one with an estimate from history."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from pdvf.deploy.model_format import Weights
from pdvf.deploy.runtime import Adapter, Network, relu, scale


class PolicyAdapter(Adapter):
    """One policy for all dynamics (PPOall, the best single one): there is nothing that it infers."""

    def _begin_episode(self) -> None:
        pass

    def _decide(self, s: np.ndarray, previous: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        del previous
        return self._policy(s)


class HistoryAdapter(Adapter):
    """A policy that sees an estimate of the context, from the last H transitions, at every step anew (RMA).

    `estimate` [f] is in the units that the policy was trained with.
    """

    infers = ("estimate",)

    def __init__(self, weights: Weights, about: dict[str, Any], hold_last_action: bool = False):
        super().__init__(weights, about, hold_last_action)
        self._transition = Network(weights, "estimator.each.layers", relu, 2)
        self._together = Network(weights, "estimator.together.layers", relu, 2)
        self._begin_episode()

    def _begin_episode(self) -> None:
        self._rows: deque[np.ndarray] = deque(maxlen=self.about["history"])
        self.estimate = np.full(self.about["sizes"]["feature"], np.nan, np.float32)

    def _decide(self, s: np.ndarray, previous: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        if previous is not None:
            self._rows.append(self._row(*previous, s))
        mean = np.mean(self._rows, axis=0) if self._rows else np.zeros(self.about["sizes"]["estimator"])
        seen = np.append(mean, bool(self._rows)).astype(np.float32)
        self.estimate = self._together(seen)
        return self._policy(np.concatenate([s, self.estimate]))

    def _row(self, observation: np.ndarray, action: np.ndarray, following: np.ndarray) -> np.ndarray:
        """Features [h] of a step from one observation [o] to the next with a scaled action [a]."""
        change = scale(self._weights, "estimator.change", following - observation)
        place = scale(self._weights, "estimator.observation", observation)
        return relu(self._transition(np.concatenate([place, action, change])))
