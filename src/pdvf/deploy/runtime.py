"""A trained model without JAX: NumPy and safetensors only, for a robot's computer.

    from pdvf.deploy.runtime import Adapter

    adapter = Adapter.load("ant-wind.pdvf")
    adapter.reset(observation)
    while not done:
        action = adapter.act(observation)
        observation, ... = robot.step(action)

PD-VF probes for the first N_d steps of an episode, infers z_d from what they did, chooses z_pi in closed form and acts
as z_pi until the next `reset`. PD-VF-plus acts under a belief that every step adds to (`pdvf.deploy.belief_runtime`).
`pdvf export RUN FILE` writes the file.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from pdvf.deploy.model_format import AdapterError, Weights, bounds, read

__all__ = ["Adapter", "AdapterError"]
FARTHEST = np.float32(1e6)  # of a scaled observation: what lies farther counts as this far
ZERO, ONE = np.float32(0), np.float32(1)


class Adapter:
    """Adapts to the dynamics of one episode. Not for several threads: an episode's state lives in it."""

    def __init__(self, weights: Weights, about: dict[str, Any], hold_last_action: bool = False):
        self._weights = weights
        self._hold = hold_last_action
        self.about = about
        self.observation_size: int = about["observation"]
        self.action_size: int = about["action"]
        self.probe_steps: int = about["probe_steps"]
        self._low, self._high = bounds(about)
        self._centre, self._width = (self._low + self._high) / 2, (self._high - self._low) / 2
        self._prepare()
        self._begun = False
        self._forget()

    def _prepare(self) -> None:
        weights = self._weights
        self._probe = Network(weights, "probe.layers", np.tanh)
        self._decoder = Network(weights, "decoder.layers", _relu)
        self._value = [
            (
                np.ascontiguousarray(np.swapaxes(weights[f"value.{layer}.weight"], -1, -2)),
                weights[f"value.{layer}.bias"],
            )
            for layer in ("first", "second", "third")
        ]

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str],
        *,
        family: str | None = None,
        observation: int = 0,
        action: int = 0,
        hold_last_action: bool = False,
    ) -> Adapter:
        """Reads and checks what `pdvf export` wrote: a file that is damaged or altered raises AdapterError.

        So does one for another family or for other dimensions, where given. With `hold_last_action` an observation
        that is not finite, a sensor that has dropped out, makes `act` repeat its last action (at the start of an
        episode the middle between the bounds); no transition with such an observation is used to infer the dynamics.
        """
        about, weights = read(file)
        for name, wanted in (("family", family), ("observation", observation), ("action", action)):
            if wanted and about[name] != wanted:
                raise AdapterError(f"{file} is for {name} {about[name]!r}, expected {wanted!r}: load another file")
        kind = cls
        if about.get("method") == "pd-vf-plus":
            from pdvf.deploy.belief_runtime import BeliefAdapter as kind
        adapter = kind(weights, about, hold_last_action)
        adapter._rehearse()
        return adapter

    def reset(self, observation: Any) -> None:
        """Begins an episode whose first observation [o] this is."""
        with np.errstate(all="ignore"):
            self._check(observation)
        self._begun = True
        self._forget()

    def act(self, observation: Any) -> np.ndarray:
        """The action [a] for an observation [o], in the environment's units and inside its bounds.

        Both arrays are the caller's to reuse: the adapter keeps copies.
        """
        if not self._begun:
            raise AdapterError("act was called before reset: call reset(observation) at the start of every episode")
        previous, self._previous = self._previous, None  # a transition is one step: none with an observation missing
        with np.errstate(all="ignore"):  # a number that overflows is clipped, see `scale`
            s = self._check(observation)
            if s is None:
                return self._last.copy()
            scaled = self._decide(s, previous)
            self._last = np.minimum(np.maximum(scaled * self._width + self._centre, self._low), self._high)
        return self._last.copy()

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

    def _decide(self, s: np.ndarray, previous: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        """The scaled action [a] for an observation [o]; `previous` is the one before and what was done, if known."""
        if self._s0 is None:
            self._s0 = s
        if self.z_pi is None and previous is not None:
            self._transitions.append((*previous, s))
            if len(self._transitions) == self.probe_steps:
                self._adapt()
        if self.z_pi is None:
            scaled = clip(self._probe(scale(self._weights, "probe.observation", s)), -ONE, ONE)
            self._previous = (s, scaled)
            return scaled
        self._seen[: self.observation_size] = scale(self._weights, "decoder.observation", s)
        return self._decoder(self._seen)

    def _forget(self) -> None:
        self.z_d: np.ndarray | None = None  # [d] once the dynamics are inferred
        self.z_pi: np.ndarray | None = None  # [e] once a policy is chosen
        self.predicted_return = float("nan")
        self._s0: np.ndarray | None = None
        self._last = self._centre
        self._previous: tuple[np.ndarray, np.ndarray] | None = None
        self._transitions: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def _rehearse(self) -> None:
        """Adapts once, to nothing: the first episode finds the libraries loaded, and memory does not grow after."""
        s, a = np.zeros((1, self.observation_size), np.float32), np.zeros((1, self.action_size), np.float32)
        with np.errstate(all="ignore"):
            self.select(s[0], self.infer(s, a, s))

    def _adapt(self) -> None:
        self.z_d = self.infer(*(np.stack(column) for column in zip(*self._transitions, strict=True)))
        assert self._s0 is not None
        self.z_pi, self.predicted_return = self.select(self._s0, self.z_d)
        place = np.zeros(self.observation_size, np.float32)  # `act` writes there
        self._seen = np.concatenate([place, _features(self.z_pi)])

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
        hidden = _relu(_linear(w, "encoder.feed_forward.0", x))
        x = _normalise(w, "encoder.norms.1", x + _linear(w, "encoder.feed_forward.1", hidden))
        return _unit(_linear(w, "encoder.embedding", x.mean(axis=0))).astype(np.float32)

    def select(self, s0: np.ndarray, z_d: np.ndarray) -> tuple[np.ndarray, float]:
        """The optimal policy embedding [e] and the return it is expected to get."""
        w = self._weights
        try:
            values, vectors = np.linalg.eigh(self.matrix(s0, z_d))
        except np.linalg.LinAlgError as error:
            raise AdapterError(f"A(s0, z_d) has no eigenvectors ({error}), expected finite s0 and z_d") from error
        nearest = np.argmin(np.sum((w["train_z_d"] - z_d) ** 2, axis=-1))
        low, high = float(w["scale.low"][nearest]), float(w["scale.high"][nearest])
        power = float(w["scale.power"])
        return vectors[:, -1], max(float(values[-1]), 0.0) ** (1 / power) * (high - low) + low

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
        for (weight, bias), function in zip(self._value, (_relu, np.tanh, None), strict=True):
            x = x @ weight + bias[:, None]  # [M, n, ...]
            x = function(x) if function else x
        size = round(x.shape[-1] ** 0.5)
        lower = x.reshape(*x.shape[:-1], size, size) * np.tri(size, dtype=np.float32)  # [M, n, e, e]
        side = np.moveaxis(lower, 0, 2).reshape(z_d.shape[0], size, -1)  # all members beside each other
        return side @ np.swapaxes(side, -1, -2) / np.float32(x.shape[0])

    def _check(self, observation: Any) -> np.ndarray | None:
        """A copy of an observation [o] as float32; None where the last action is to be held."""
        expected = f"expected {self.observation_size} finite numbers"
        try:
            given = np.asarray(observation)
        except Exception as error:
            raise AdapterError(f"observation of type {type(observation).__name__} is no array, {expected}") from error
        if given.dtype.kind not in "fiub" or hasattr(observation, "filled"):  # a masked array; numpy.ma takes 7 MB
            kind = f"type {type(observation).__name__} holds {given.dtype}"
            raise AdapterError(f"observation of {kind}, {expected}")
        if given.shape != (self.observation_size,):
            raise AdapterError(f"observation has shape {given.shape}, {expected}")
        s = given.astype(np.float32)
        if np.isfinite(s).all():
            return s
        if self._hold:
            return None
        raise AdapterError(f"observation has numbers that are not finite, {expected}")


class Network:
    """Linear layers `name.0`, `name.1` and `name.2` with a function between them."""

    def __init__(self, weights: Weights, name: str, between: Any):
        self._layers = [(weights[f"{name}.{i}.weight"], weights[f"{name}.{i}.bias"]) for i in range(3)]
        self._between = between

    def __call__(self, x: np.ndarray) -> np.ndarray:
        for weight, bias in self._layers[:-1]:
            x = self._between(weight.dot(x) + bias)
        weight, bias = self._layers[-1]
        return weight.dot(x) + bias


def _linear(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def scale(weights: Weights, name: str, x: np.ndarray, farthest: np.float32 = FARTHEST) -> np.ndarray:
    """Numbers of order one, and none farther from 0 than `farthest`."""
    return clip((x - weights[f"{name}.centre"]) / weights[f"{name}.width"], -farthest, farthest)


def clip(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """As numpy.clip, in half the time for a few numbers."""
    return np.minimum(np.maximum(x, low), high)


def _normalise(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + np.float32(1e-5))
    return centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True) + np.float32(1e-12))


def _features(z_pi: np.ndarray) -> np.ndarray:
    """What the policy decoder sees of z_pi: the products z_i z_j, so z and -z are one policy."""
    rows, columns = np.triu_indices(z_pi.shape[-1])
    double = np.where(rows == columns, 1.0, 2.0)
    return (z_pi[rows] * z_pi[columns] * np.sqrt(z_pi.shape[-1] * double)).astype(np.float32)


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, ZERO)
