"""PD-VF-plus without JAX: a policy that acts under a belief about the dynamics, as `pdvf.adapt.belief` has it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pdvf.deploy.model_format import Weights
from pdvf.deploy.runtime import ONE, Adapter, Network, clip, scale

FEWEST, SURE = 8, 2.0
"""As `pdvf.adapt.belief` has them."""


class BeliefAdapter(Adapter):
    """Adds every step of an episode to a Gaussian belief over the code of its dynamics; see `Adapter.load`.

    `mean` [K] and `covariance` [K, K] are the belief's, after `steps` steps. Networks compute in float32, the belief in
    float64. A step from which no finite belief follows is left out.
    """

    infers = ("mean", "covariance", "novelty")
    adapting = True
    """Whether the policy is told the belief's mean. Without, it is told code 0, the middle of those of training, as
    surely as the belief knows better: what one policy for all environments is worth."""

    def __init__(self, weights: Weights, about: dict[str, Any], hold_last_action: bool = False):
        super().__init__(weights, about, hold_last_action)
        self._code: int = about["sizes"]["code"]
        self._model = Network(weights | _last_layer(weights, self.observation_size), "model.layers", _silu)
        self._temperature = float(weights["model.temperature"])
        self._farthest, self._outlier = np.float32(about["farthest_input"]), np.float32(about["outlier"])
        self._log_std = about["log_std_low"], about["log_std_high"]
        self._edge, self._prior_std = float(about["residual_edge"]), float(about["prior_std"])
        self._largest, self._familiar = about["largest_mean"], float(about["familiar_mean"])
        self._threshold = float(about.get("novelty_threshold") or 1.0)
        self._begin_episode()

    @property
    def novelty(self) -> float:
        """Mean squared normalised residual of the belief's predictions, over the steps of the episode so far.

        About 1 where the model explains what happens. NaN before the first step is seen.
        """
        return self._surprise / max(self.steps, FEWEST) if self.steps else float("nan")

    @property
    def out_of_distribution(self) -> float:
        """How unlike training the episode is: above 1 beyond the codes of training, or where no code explains it.

        That is `novelty` above the file's `novelty_threshold`, or 1 where it has none.
        """
        return max(self._reach() / self._familiar, self.novelty / self._threshold) if self.steps else float("nan")

    # ----------------------------------------------------------------------------------------------------------------

    def _reach(self) -> float:
        """How far from the centre the code is at least."""
        norm = math.hypot(*self.mean)
        along = self.mean / max(norm, 1e-6)
        return norm - SURE * math.sqrt(max(along @ self.covariance @ along, 0.0))

    def _begin_episode(self) -> None:
        size = self._code
        self.mean, self.covariance = np.zeros(size), np.eye(size) * self._prior_std**2
        self._precision, self._information = np.eye(size) / self._prior_std**2, np.zeros(size)
        self._surprise, self.steps = 0.0, 0
        prior = np.zeros(size), np.ones(size)
        self._seen = np.concatenate([np.zeros(self.observation_size), *prior]).astype(np.float32)

    def _decide(self, s: np.ndarray, previous: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        if previous is not None:
            self._update(*previous, s)
        self._seen[: self.observation_size] = s
        return self._policy(self._seen)

    def _update(self, observation: np.ndarray, action: np.ndarray, following: np.ndarray) -> None:
        """Takes in a step from one observation [o] to the next with a scaled action [a]."""
        predicted, h, variance = self._predict(observation, action)
        change = scale(self._weights, "model.change", following - observation, self._outlier) - predicted
        spread = np.sqrt(variance + ((h @ self.covariance) * h).sum(axis=1))
        residual = np.abs(change - h @ self.mean) / spread
        weighted = h.T * (np.minimum(1.0, self._edge / np.maximum(residual, 1e-6)) / variance)
        precision, information = self._precision + weighted @ h, self._information + weighted @ change
        try:
            covariance = np.linalg.inv(precision)
        except np.linalg.LinAlgError:
            return
        mean, std = covariance @ information, np.sqrt(covariance.diagonal())
        bounded = np.minimum(residual, self._edge**2)
        surprise = self._surprise + float(bounded @ bounded) / self.observation_size
        numbers = np.concatenate([mean, std, precision.ravel(), information])
        if not (np.isfinite(numbers).all() and math.isfinite(surprise)):
            return
        self._precision, self._information, self._surprise = precision, information, surprise
        self.mean, self.covariance, self.steps = mean, covariance, self.steps + 1
        if self.adapting:
            self._seen[-2 * self._code : -self._code] = clip(mean, -self._largest, self._largest)
        self._seen[-self._code :] = std / self._prior_std

    def _predict(self, observation: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scaled change [o] at code 0, its sensitivity [o, K] to the code, and the variance [o] of the noise."""
        o = self.observation_size
        place = scale(self._weights, "model.observation", observation, self._farthest)
        out = self._model(np.concatenate([place, action])).astype(float)
        variance = self._temperature * np.exp(2 * clip(out[-o:], *self._log_std))
        return out[:o], out[o:-o].reshape(o, self._code), variance


def _last_layer(weights: Weights, o: int) -> Weights:
    """The model's last layer for codes; the file has it for raw codes, which are origin + frame @ code."""
    origin, frame = weights["model.origin"], weights["model.frame"].astype(float)

    def for_codes(rows: np.ndarray) -> np.ndarray:
        mean, raw, log_std = np.split(rows, [o, rows.shape[0] - o])
        raw = raw.reshape(o, origin.size, -1).astype(float)
        mean = mean.reshape(o, -1) + np.einsum("okh,k->oh", raw, origin)
        sensitivity = np.einsum("okh,kj->ojh", raw, frame)
        parts = mean, sensitivity.reshape(o * origin.size, -1), log_std.reshape(o, -1)
        return np.concatenate(parts).astype(np.float32).reshape(rows.shape)

    return {name: for_codes(weights[name]) for name in ("model.layers.2.weight", "model.layers.2.bias")}


def _silu(x: np.ndarray) -> Any:
    return x / (ONE + np.exp(-x))
