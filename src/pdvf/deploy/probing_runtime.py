"""Methods that probe first, without JAX: infer z_d from the first N_d steps, then act as a subclass chooses."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from pdvf.deploy.model_format import Weights
from pdvf.deploy.runtime import ONE, Adapter, Network, clip, relu, scale


class ProbingAdapter(Adapter):
    """Probes for the first N_d steps of an episode; `z_d` [d] is there once they are over, None before."""

    infers: tuple[str, ...] = ("z_d",)

    def __init__(self, weights: Weights, about: dict[str, Any], hold_last_action: bool = False):
        super().__init__(weights, about, hold_last_action)
        self._probe = Network(weights, "probe.layers", np.tanh)
        self._begin_episode()

    @abc.abstractmethod
    def _choose(self, s0: np.ndarray, z_d: np.ndarray) -> None:
        """Decides how to act from now on."""

    @abc.abstractmethod
    def _own(self, s: np.ndarray) -> np.ndarray:
        """The scaled action [a] for an observation [o] once that is decided."""

    def _begin_episode(self) -> None:
        self.z_d: np.ndarray | None = None
        self.predicted_return = float("nan")
        self._s0: np.ndarray | None = None
        self._transitions: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def _decide(self, s: np.ndarray, previous: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        if self._s0 is None:
            self._s0 = s
        if self.z_d is None and previous is not None:
            self._transitions.append((*previous, s))
            if len(self._transitions) == self.probe_steps:
                self.z_d = self.infer(*(np.stack(column) for column in zip(*self._transitions, strict=True)))
                self._choose(self._s0, self.z_d)
        if self.z_d is None:
            return clip(self._probe(scale(self._weights, "probe.observation", s)), -ONE, ONE)
        return self._own(s)

    def infer(self, observation: np.ndarray, action: np.ndarray, following: np.ndarray) -> np.ndarray:
        """z_d [d] from transitions s [m, o], a [m, a] scaled, s' [m, o]."""
        w = self._weights
        change = scale(w, "dynamics.change", following - observation)
        elements = np.concatenate([scale(w, "dynamics.observation", observation), action, change], axis=-1)
        x = _linear(w, "encoder.element", elements.astype(np.float64))  # products of three layers overflow float32
        q, k, v = (_linear(w, f"encoder.{name}", x) for name in ("query", "key", "value"))
        scores = q @ k.T / np.sqrt(np.float32(q.shape[-1]))
        attention = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attention /= attention.sum(axis=-1, keepdims=True)
        x = _normalise(w, "encoder.norms.0", x + _linear(w, "encoder.output", attention @ v))
        hidden = relu(_linear(w, "encoder.feed_forward.0", x))
        x = _normalise(w, "encoder.norms.1", x + _linear(w, "encoder.feed_forward.1", hidden))
        return _unit(_linear(w, "encoder.embedding", x.mean(axis=0))).astype(np.float32)


class ConditionedAdapter(ProbingAdapter):
    """One policy that sees z_d beside the observation (PPOdyn)."""

    def _choose(self, s0: np.ndarray, z_d: np.ndarray) -> None:
        del s0
        self._chosen = z_d

    def _own(self, s: np.ndarray) -> np.ndarray:
        return self._policy(np.concatenate([s, self._chosen]))


class NearestAdapter(ProbingAdapter):
    """The policy of the nearest of some z_d: of training environments (NN) or of clusters of them (Kmeans)."""

    def __init__(self, weights: Weights, about: dict[str, Any], hold_last_action: bool = False):
        super().__init__(weights, about, hold_last_action)
        actors = {name: each for name, each in weights.items() if name.startswith("actor.")}
        self._each = [{name: each[k] for name, each in actors.items()} for k in range(about["sizes"]["policies"])]
        self._actors = [Network(one, "actor.layers", np.tanh) for one in self._each]

    @property
    def out_of_distribution(self) -> float:
        """The distance of z_d to the nearest in the file; at most 2, and 0 is familiar. NaN while probing."""
        return float("nan") if self.z_d is None else float(np.sqrt(np.min(self._distances(self.z_d))))

    def _choose(self, s0: np.ndarray, z_d: np.ndarray) -> None:
        del s0
        self._chosen = int(np.argmin(self._distances(z_d)))

    def _own(self, s: np.ndarray) -> np.ndarray:
        return self._actors[self._chosen](scale(self._each[self._chosen], "actor.observation", s))

    def _distances(self, z_d: np.ndarray) -> np.ndarray:
        return np.sum((self._weights["centres"] - z_d) ** 2, axis=1)


def _linear(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _normalise(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + np.float32(1e-5))
    return centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True) + np.float32(1e-12))
