"""A trained model without JAX: NumPy and safetensors only, for a robot's computer.

    from pdvf.deploy.runtime import Adapter

    adapter = Adapter.load("ant-wind.pdvf")
    adapter.reset(observation)
    while not done:
        action = adapter.act(observation)
        observation, ... = robot.step(action)

`pdvf export RUN FILE` writes the file. It holds a model of one of two methods. PD-VF probes first and then chooses a
policy (`pdvf.deploy.value_runtime`). PD-VF-plus acts from the first step on, under a belief that every step adds to
(`pdvf.deploy.belief_runtime`). `load` makes the adapter that belongs to the file.
"""

from __future__ import annotations

import abc
import os
from typing import Any

import numpy as np

from pdvf.deploy.model_format import AdapterError, Weights, bounds, read

__all__ = ["Adapter", "AdapterError"]
FARTHEST = np.float32(1e6)  # of a scaled observation: what lies farther counts as this far
ZERO, ONE = np.float32(0), np.float32(1)


class Adapter(abc.ABC):
    """Adapts to the dynamics of one episode. Not for several threads: an episode's state lives in it.

    `predicted_return` is NaN until there is a prediction.
    """

    predicted_return = float("nan")

    def __init__(self, weights: Weights, about: dict[str, Any], hold_last_action: bool = False):
        self._weights = weights
        self._hold = hold_last_action
        self.about = about
        self.observation_size: int = about["observation"]
        self.action_size: int = about["action"]
        self.probe_steps: int = about["probe_steps"]
        self._low, self._high = bounds(about)
        self._centre, self._width = (self._low + self._high) / 2, (self._high - self._low) / 2
        self._begun = False

    @staticmethod
    def load(
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
        from pdvf.deploy.belief_runtime import BeliefAdapter
        from pdvf.deploy.value_runtime import ValueAdapter

        kind = BeliefAdapter if about.get("method") == "pd-vf-plus" else ValueAdapter
        adapter = kind(weights, about, hold_last_action)
        with np.errstate(all="ignore"):
            adapter._rehearse()
        return adapter

    def reset(self, observation: Any) -> None:
        """Begins an episode whose first observation [o] this is."""
        with np.errstate(all="ignore"):
            self._check(observation)
        self._begun = True
        self._last = self._centre
        self._previous: tuple[np.ndarray, np.ndarray] | None = None
        self._begin_episode()

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
            self._previous = (s, scaled)
            self._last = np.minimum(np.maximum(scaled * self._width + self._centre, self._low), self._high)
        return self._last.copy()

    @property
    @abc.abstractmethod
    def out_of_distribution(self) -> float:
        """How unlike training the dynamics of this episode are: about 1 and less is familiar. NaN while unknown."""

    # ----------------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _begin_episode(self) -> None:
        """Forgets the episode before."""

    @abc.abstractmethod
    def _decide(self, s: np.ndarray, previous: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        """The scaled action [a] for an observation [o]; `previous` is the one before and what was done, if known."""

    @abc.abstractmethod
    def _rehearse(self) -> None:
        """Adapts once, to nothing: the first episode finds the libraries loaded, and memory does not grow after."""

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


def scale(weights: Weights, name: str, x: np.ndarray, farthest: np.float32 = FARTHEST) -> np.ndarray:
    """Numbers of order one, and none farther from 0 than `farthest`."""
    return clip((x - weights[f"{name}.centre"]) / weights[f"{name}.width"], -farthest, farthest)


def clip(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """As numpy.clip, in half the time for a few numbers."""
    return np.minimum(np.maximum(x, low), high)
