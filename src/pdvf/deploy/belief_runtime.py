"""PD-VF-plus without JAX: a policy that acts under a belief about the dynamics, as `pdvf.adapt.belief` has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdvf.deploy.runtime import ONE, Adapter, Network, clip, scale


class BeliefAdapter(Adapter):
    """Adds every step of an episode to a Gaussian belief over the code of its dynamics; made by `Adapter.load`.

    `mean` [K] and `covariance` [K, K] are the belief's. Networks compute in float32, the belief in float64. A step from
    which no finite belief follows is left out.
    """

    def _prepare(self) -> None:
        about = self.about
        self._actor = Network(self._weights, "actor.layers", np.tanh)
        self._model = Network(self._weights, "model.layers", _silu)
        self._origin, self._frame = (self._weights[f"model.{name}"].astype(float) for name in ("origin", "frame"))
        self._temperature = float(self._weights["model.temperature"])
        self._farthest, self._outlier = np.float32(about["farthest_input"]), np.float32(about["outlier"])
        self._log_std = (about["log_std_low"], about["log_std_high"])
        self._edge, self._prior_std = float(about["residual_edge"]), float(about["prior_std"])

    @property
    def novelty(self) -> float:
        """Mean squared normalised residual of the belief's own predictions, over the steps of the episode so far.

        About 1 where the model explains what happens, more where the dynamics are unlike training. NaN before the
        first step is seen.
        """
        return self._surprise / self._steps if self._steps else float("nan")

    @property
    def out_of_distribution(self) -> float:
        """How unlike training the episode is: `novelty`."""
        return self.novelty

    # ----------------------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        super()._forget()
        size = self.about["sizes"]["code"]
        self.mean, self.covariance = np.zeros(size), np.eye(size) * self._prior_std**2
        self._precision, self._information = np.eye(size) / self._prior_std**2, np.zeros(size)
        self._features = np.concatenate([np.zeros(size), np.ones(size)]).astype(np.float32)
        self._surprise, self._steps = 0.0, 0

    def _rehearse(self) -> None:
        zeros = np.zeros(self.observation_size, np.float32)
        with np.errstate(all="ignore"):
            self._update(zeros, np.zeros(self.action_size, np.float32), zeros)
        self._forget()

    def _decide(self, s: np.ndarray, previous: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        if previous is not None:
            self._update(*previous, s)
        seen = np.concatenate([s, self._features])
        scaled = clip(self._actor(scale(self._weights, "actor.observation", seen)), -ONE, ONE)
        self._previous = (s, scaled)
        return scaled

    def _update(self, observation: np.ndarray, action: np.ndarray, following: np.ndarray) -> None:
        """Takes in a step from one observation [o] to the next with a scaled action [a]."""
        mean, h, variance = self._predict(observation, action)
        change = scale(self._weights, "model.change", following - observation, self._outlier) - mean
        spread = np.sqrt(variance + np.sum((h @ self.covariance) * h, axis=1))
        residual = (change - h @ self.mean) / spread
        weighted = h.T * (np.minimum(1.0, self._edge / np.maximum(np.abs(residual), 1e-6)) / variance)
        precision, information = self._precision + weighted @ h, self._information + weighted @ change
        try:
            covariance = np.linalg.inv(precision)
        except np.linalg.LinAlgError:
            return
        mean, std = covariance @ information, np.sqrt(np.diagonal(covariance))
        surprise = self._surprise + float(np.minimum(residual**2, self._edge**4).mean())
        if not np.isfinite(np.concatenate([mean, std, precision.ravel(), information, [surprise]])).all():
            return
        self._precision, self._information, self._surprise = precision, information, surprise
        self.mean, self.covariance, self._steps = mean, covariance, self._steps + 1
        largest = self.about["largest_mean"]
        told = np.concatenate([clip(mean, -largest, largest), std / self._prior_std])
        self._features = told.astype(np.float32)

    def _predict(self, observation: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scaled change [o] at code 0, its sensitivity [o, K] to the code, and the variance [o] of the noise."""
        o, code = self.observation_size, self._origin.size
        place = scale(self._weights, "model.observation", observation, self._farthest)
        out = self._model(np.concatenate([place, action])).astype(float)
        sensitivity = out[o : o + o * code].reshape(o, code)
        variance = self._temperature * np.exp(2 * clip(out[o + o * code :], *self._log_std))
        return out[:o] + sensitivity @ self._origin, sensitivity @ self._frame, variance


def _silu(x: np.ndarray) -> Any:
    return x / (ONE + np.exp(-x))
