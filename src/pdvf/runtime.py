"""A trained PD-VF without JAX: NumPy and safetensors only, for a robot's computer.

    from pdvf.runtime import Adapter

    adapter = Adapter.load("ant-wind.pdvf")
    adapter.reset(observation)
    while not done:
        action = adapter.act(observation)
        observation, ... = robot.step(action)

`act` probes for the first N_d steps of an episode, infers z_d from what they did, chooses z_pi in closed form and acts
as z_pi until the next `reset`. `pdvf export RUN FILE` writes the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "pdvf-adapter"
VERSION = 1
Weights = dict[str, np.ndarray]


class AdapterError(ValueError):
    """A file or an observation that cannot be used; the message says what was given and what was expected."""


class Adapter:
    """Adapts to the dynamics of one episode. Not for several threads: an episode's state lives in it."""

    def __init__(self, weights: Weights, about: dict[str, Any]):
        self._weights = weights
        self.about = about
        self.observation_size = int(about["observation"])
        self.action_size = int(about["action"])
        self.probe_steps = int(about["probe_steps"])
        self._probe = _Network(weights, "probe.layers", np.tanh)
        self._decoder = _Network(weights, "decoder.layers", _relu)
        self._value = [
            (
                np.ascontiguousarray(np.swapaxes(weights[f"value.{layer}.weight"], -1, -2)),
                weights[f"value.{layer}.bias"],
            )
            for layer in ("first", "second", "third")
        ]
        self._begun = False
        self._forget()

    @classmethod
    def load(cls, file: str | Path, *, family: str | None = None, observation: int = 0, action: int = 0) -> Adapter:
        """Reads what `pdvf export` wrote; refuses a file for another family or for other dimensions, where given."""
        from safetensors import SafetensorError, safe_open

        path = Path(file)
        if not path.is_file():
            raise AdapterError(f"{path} is not there, expected a file made by `pdvf export RUN FILE`")
        try:
            with safe_open(str(path), framework="numpy") as opened:
                about = json.loads((opened.metadata() or {}).get("about", "{}"))
                weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, json.JSONDecodeError, OSError) as error:
            raise AdapterError(f"{path} cannot be read ({error}), expected a file made by `pdvf export`") from error
        if about.get("format") != FORMAT or about.get("version") != VERSION:
            given = f"{about.get('format')!r} version {about.get('version')!r}"
            raise AdapterError(f"{path} has format {given}, expected {FORMAT!r} version {VERSION}: export it again")
        for name, wanted in (("family", family), ("observation", observation), ("action", action)):
            if wanted and about[name] != wanted:
                raise AdapterError(f"{path} is for {name} {about[name]!r}, expected {wanted!r}: load another file")
        return cls(weights, about)

    def reset(self, observation: Any) -> None:
        """Begins an episode whose first observation [o] this is."""
        self._check(observation)
        self._begun = True
        self._forget()

    def act(self, observation: Any) -> np.ndarray:
        """The action [a] for an observation [o], in the environment's units and inside its bounds."""
        if not self._begun:
            raise AdapterError("act was called before reset: call reset(observation) at the start of every episode")
        s = self._check(observation)
        if self._s0 is None:
            self._s0 = s
        if self.z_pi is None:
            if self._previous is not None:
                self._transitions.append((*self._previous, s))
            if len(self._transitions) == self.probe_steps:
                self._adapt()
        if self.z_pi is None:
            scaled = self._clip(self._probe(_scale(self._weights, "probe.observation", s)))
            self._previous = (s, scaled)
        else:
            assert self._features is not None
            place = _scale(self._weights, "decoder.observation", s)
            scaled = self._clip(self._decoder(np.concatenate([place, self._features])))
        return scaled * self._weights["action.width"] + self._weights["action.centre"]

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

    def _forget(self) -> None:
        self.z_d: np.ndarray | None = None  # [d] once the dynamics are inferred
        self.z_pi: np.ndarray | None = None  # [e] once a policy is chosen
        self.predicted_return = float("nan")
        self._s0: np.ndarray | None = None
        self._previous: tuple[np.ndarray, np.ndarray] | None = None
        self._transitions: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._features: np.ndarray | None = None

    def _adapt(self) -> None:
        self.z_d = self.infer(*(np.stack(column) for column in zip(*self._transitions, strict=True)))
        assert self._s0 is not None
        self.z_pi, self.predicted_return = self.select(self._s0, self.z_d)
        self._features = _features(self.z_pi)

    def infer(self, observation: np.ndarray, action: np.ndarray, following: np.ndarray) -> np.ndarray:
        """z_d [d] from transitions s [m, o], a [m, a] scaled, s' [m, o]."""
        w = self._weights
        change = _scale(w, "dynamics.change", following - observation)
        elements = np.concatenate([_scale(w, "dynamics.observation", observation), action, change], axis=-1)
        x = _linear(w, "encoder.element", elements)
        q, k, v = (_linear(w, f"encoder.{name}", x) for name in ("query", "key", "value"))
        scores = q @ k.T / np.sqrt(np.float32(q.shape[-1]))
        attention = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attention /= attention.sum(axis=-1, keepdims=True)
        x = _normalise(w, "encoder.norms.0", x + _linear(w, "encoder.output", attention @ v))
        hidden = _relu(_linear(w, "encoder.feed_forward.0", x))
        x = _normalise(w, "encoder.norms.1", x + _linear(w, "encoder.feed_forward.1", hidden))
        return _unit(_linear(w, "encoder.embedding", x.mean(axis=0)))

    def select(self, s0: np.ndarray, z_d: np.ndarray) -> tuple[np.ndarray, float]:
        """The optimal policy embedding [e] and the return it is expected to get."""
        w = self._weights
        values, vectors = np.linalg.eigh(self.matrix(s0, z_d))
        # Where every training environment has a range of returns of its own, that of the nearest.
        nearest = np.argmin(np.sum((w["train_z_d"] - z_d) ** 2, axis=-1))
        low, high = (float(x if x.ndim == 0 else x[nearest]) for x in (w["scale.low"], w["scale.high"]))
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
        place = np.broadcast_to(_scale(w, "value.observation", s0), (z_d.shape[0], self.observation_size))
        x: np.ndarray = np.concatenate([place, z_d], axis=-1)
        for (weight, bias), function in zip(self._value, (_relu, np.tanh, None), strict=True):
            x = x @ weight + bias[:, None]  # [M, n, ...]
            x = function(x) if function else x
        size = round(x.shape[-1] ** 0.5)
        lower = x.reshape(*x.shape[:-1], size, size) * np.tri(size, dtype=np.float32)  # [M, n, e, e]
        side = np.moveaxis(lower, 0, 2).reshape(z_d.shape[0], size, -1)  # all members beside each other
        return side @ np.swapaxes(side, -1, -2) / np.float32(x.shape[0])

    def _check(self, observation: Any) -> np.ndarray:
        s = np.asarray(observation, np.float32)
        if s.shape != (self.observation_size,) or not np.all(np.isfinite(s)):
            given = f"shape {s.shape}" if s.shape != (self.observation_size,) else "numbers that are not finite"
            raise AdapterError(f"observation has {given}, expected {self.observation_size} finite numbers")
        return s

    @staticmethod
    def _clip(scaled: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(scaled, np.float32(-1)), np.float32(1))


class _Network:
    """Linear layers `name.0`, `name.1`, ... with a function between them."""

    def __init__(self, weights: Weights, name: str, between: Any):
        count = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in weights)
        self._layers = [(weights[f"{name}.{i}.weight"], weights[f"{name}.{i}.bias"]) for i in range(count)]
        self._between = between

    def __call__(self, x: np.ndarray) -> np.ndarray:
        for weight, bias in self._layers[:-1]:
            x = self._between(weight @ x + bias)
        weight, bias = self._layers[-1]
        return weight @ x + bias


def _linear(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _scale(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return (x - weights[f"{name}.centre"]) / weights[f"{name}.width"]


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
    return np.maximum(x, np.float32(0))
