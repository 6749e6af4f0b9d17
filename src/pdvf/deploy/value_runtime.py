"""PD-VF without JAX: probe, infer z_d, choose z_pi in closed form, act as `pdvf.paper.adapter` does."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdvf.deploy.model_format import AdapterError, Weights
from pdvf.deploy.probing_runtime import ProbingAdapter
from pdvf.deploy.runtime import Network, relu, scale


class ValueAdapter(ProbingAdapter):
    """Probes for the first N_d steps of an episode, then acts as the z_pi that W expects most of; see `Adapter.load`.

    `z_d`, `z_pi` and `predicted_return` are there once the probing steps are over.
    """

    infers = ("z_d", "z_pi")

    def __init__(self, weights: Weights, about: dict[str, Any], hold_last_action: bool = False):
        super().__init__(weights, about, hold_last_action)
        self._decoder = Network(weights, "decoder.layers", relu)
        self._value = [
            (
                np.ascontiguousarray(np.swapaxes(weights[f"value.{layer}.weight"], -1, -2)),
                weights[f"value.{layer}.bias"],
            )
            for layer in ("first", "second", "third")
        ]

    @property
    def z_pi(self) -> np.ndarray | None:
        """The policy embedding [e], once it is chosen."""
        return None if self.z_d is None else self._chosen

    @property
    def out_of_distribution(self) -> float:
        """How far z_d lies from anything seen in training.

        The distance to the nearest z_d of a training environment, in units of the largest such distance among the
        training environments themselves: about 1 and less is familiar, 3 is not. NaN while probing.
        """
        if self.z_d is None:
            return float("nan")
        nearest = np.sqrt(np.min(np.sum((self._weights["train_z_d"] - self.z_d) ** 2, axis=1)))
        return float(nearest / self._weights["familiar"])

    # ----------------------------------------------------------------------------------------------------------------

    def _choose(self, s0: np.ndarray, z_d: np.ndarray) -> None:
        self._chosen, self.predicted_return = self.select(s0, z_d)
        place = np.zeros(self.observation_size, np.float32)  # `_own` writes there
        self._seen = np.concatenate([place, _features(self._chosen)])

    def _own(self, s: np.ndarray) -> np.ndarray:
        self._seen[: self.observation_size] = scale(self._weights, "decoder.observation", s)
        return self._decoder(self._seen)

    def select(self, s0: np.ndarray, z_d: np.ndarray) -> tuple[np.ndarray, float]:
        """The optimal policy embedding [e] and the return it is expected to get: no more than any in training."""
        w = self._weights
        try:
            values, vectors = np.linalg.eigh(self.matrix(s0, z_d))
        except np.linalg.LinAlgError as error:
            raise AdapterError(f"A(s0, z_d) has no eigenvectors ({error}), expected finite s0 and z_d") from error
        nearest = np.argmin(np.sum((w["train_z_d"] - z_d) ** 2, axis=-1))
        low, high = float(w["scale.low"][nearest]), float(w["scale.high"][nearest])
        power = float(w["scale.power"])
        return vectors[:, -1], min(max(float(values[-1]), 0.0), 1.0) ** (1 / power) * (high - low) + low

    def matrix(self, s0: np.ndarray, z_d: np.ndarray) -> np.ndarray:
        """A [e, e] of W(s0, z_pi, z_d) = z_pi' A z_pi, held by its values in the training environments near z_d."""
        share, width, known = float(self.about["anchor"]), float(self.about["anchor_width"]), self._weights["train_z_d"]
        if share == 0.0:
            return self._matrices(s0, z_d[None])[0]
        distance = np.sum((known - z_d) ** 2, axis=-1)
        nearest = np.argsort(distance)[: int(self.about["anchors"])]
        matrices = self._matrices(s0, np.concatenate([z_d[None], known[nearest]]))
        weights = np.exp((distance[nearest[0]] - distance[nearest]) / (2 * width**2))
        return (1 - share) * matrices[0] + share * np.einsum("e,eij->ij", weights / weights.sum(), matrices[1:])

    def _matrices(self, s0: np.ndarray, z_d: np.ndarray) -> np.ndarray:
        """Mean of the members' quadratic forms [n, e, e] for each z_d [n, d]."""
        w = self._weights
        place = np.broadcast_to(scale(w, "value.observation", s0), (z_d.shape[0], self.observation_size))
        x: np.ndarray = np.concatenate([place, z_d], axis=-1)
        for (weight, bias), function in zip(self._value, (relu, np.tanh, None), strict=True):
            x = x @ weight + bias[:, None]  # [M, n, ...]
            x = function(x) if function else x
        size = round(x.shape[-1] ** 0.5)
        lower = x.reshape(*x.shape[:-1], size, size) * np.tri(size, dtype=np.float32)  # [M, n, e, e]
        side = np.moveaxis(lower, 0, 2).reshape(z_d.shape[0], size, -1)  # all members beside each other
        return side @ np.swapaxes(side, -1, -2) / np.float32(x.shape[0])


def _features(z_pi: np.ndarray) -> np.ndarray:
    """What the policy decoder sees of z_pi: the products z_i z_j, so z and -z are one policy."""
    rows, columns = np.triu_indices(z_pi.shape[-1])
    double = np.where(rows == columns, 1.0, 2.0)
    return (z_pi[rows] * z_pi[columns] * np.sqrt(z_pi.shape[-1] * double)).astype(np.float32)
