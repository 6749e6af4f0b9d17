"""A trained model without JAX: NumPy and safetensors only, for a robot's computer.

    from pdvf.deploy.runtime import Adapter

    adapter = Adapter.load("ant-wind.pdvf")
    adapter.reset(observation)
    while not done:
        action = adapter.act(observation)
        observation, ... = robot.step(action)

`pdvf export RUN FILE` writes the file, and `load` makes the adapter that belongs to it. PD-VF probes first and then
chooses a policy (`pdvf.deploy.value_runtime`); PD-VF-plus acts from the first step on, under a belief that every step
adds to (`pdvf.deploy.belief_runtime`). Baselines are in `pdvf.deploy.probing_runtime` and `policy_runtime`.
"""

from __future__ import annotations

import abc
import importlib
import os
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from pdvf.deploy.model_format import AdapterError, Weights, bounds, layout_name, read

__all__ = ["Adapter", "AdapterError"]
FARTHEST = np.float32(1e6)  # of a scaled observation: what lies farther counts as this far
ZERO, ONE = np.float32(0), np.float32(1)
ADAPTERS = {
    "value": ("pdvf.deploy.value_runtime", "ValueAdapter"),
    "belief": ("pdvf.deploy.belief_runtime", "BeliefAdapter"),
    "policy": ("pdvf.deploy.policy_runtime", "PolicyAdapter"),
    "history": ("pdvf.deploy.policy_runtime", "HistoryAdapter"),
    "conditioned": ("pdvf.deploy.probing_runtime", "ConditionedAdapter"),
    "nearest": ("pdvf.deploy.probing_runtime", "NearestAdapter"),
}
"""What acts for each layout of a file."""


class Adapter(abc.ABC):
    """Adapts to the dynamics of one episode. Not for several threads: an episode's state lives in it.

    `predicted_return` is NaN until there is a prediction.
    """

    infers: tuple[str, ...] = ()
    """What a method infers besides `predicted_return` and `out_of_distribution`: attributes."""
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
        """Reads and checks what `pdvf export` wrote.

        Args:
            file: a path.
            family: name of the family that it has to be for, if that is to be checked.
            observation: numbers of an observation that it has to be for; 0 for any.
            action: numbers of an action that it has to be for; 0 for any.
            hold_last_action: whether an observation that is not finite, a sensor that has dropped out, makes `act`
                repeat its last action (at the start of an episode the middle between the bounds); no transition with
                such an observation is used to infer the dynamics.

        Raises:
            AdapterError: the file is damaged, altered, or for something else.
        """
        about, weights = read(file)
        for name, wanted in (("family", family), ("observation", observation), ("action", action)):
            if wanted and about[name] != wanted:
                raise AdapterError(f"{file} is for {name} {about[name]!r}, expected {wanted!r}: load another file")
        module, name = ADAPTERS[layout_name(about)]
        adapter: Adapter = getattr(importlib.import_module(module), name)(weights, about, hold_last_action)
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

    def took(self, action: Any) -> None:
        """Tells that another action [a] was carried out than `act` last gave: a safety layer's, or a person's.

        Call it after `act`; what is inferred of the dynamics then follows from what was done.
        """
        given = _array(action, self.action_size, "action")
        if not np.isfinite(given).all():
            raise AdapterError(f"action has numbers that are not finite, expected {self.action_size} finite numbers")
        if self._previous is not None:
            self._previous = (self._previous[0], clip((given - self._centre) / self._width, -ONE, ONE))
        self._last = clip(given, self._low, self._high)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest action [a]."""
        return self._low.copy(), self._high.copy()

    @property
    def inferred(self) -> dict[str, Any]:
        """What is known of the episode so far: numbers and arrays by name, NaN while unknown.

        Always `predicted_return` and `out_of_distribution`; besides `z_d` and `z_pi` (PD-VF), `mean` and `covariance`
        of the belief (PD-VF-plus), or what else the method infers.
        """
        found = {name: getattr(self, name) for name in ("predicted_return", "out_of_distribution", *self.infers)}
        unknown = {name: np.full(size, np.nan, np.float32) for name, size in self.about["sizes"].items()}
        return {name: unknown[name] if x is None else copy(x) for name, x in found.items()}

    def card(self) -> str:
        """The model card in Markdown: what the model was trained on, what it measured, its limits and licence."""
        from pdvf.deploy.card import markdown

        return markdown(self.about)

    @property
    def out_of_distribution(self) -> float:
        """How unlike training the dynamics of this episode are: about 1 and less is familiar. NaN while unknown.

        It stays NaN where nothing in the file says which dynamics were seen in training.
        """
        return float("nan")

    # ----------------------------------------------------------------------------------------------------------------

    @cached_property
    def _actor(self) -> Network:
        return Network(self._weights, "actor.layers", np.tanh)

    def _policy(self, seen: np.ndarray) -> np.ndarray:
        """The scaled action [a] of the file's policy, where it has one, for all that it sees."""
        return clip(self._actor(scale(self._weights, "actor.observation", seen)), -ONE, ONE)

    @abc.abstractmethod
    def _begin_episode(self) -> None:
        """Forgets the episode before."""

    @abc.abstractmethod
    def _decide(self, s: np.ndarray, previous: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
        """The scaled action [a] for an observation [o]; `previous` is the one before and what was done, if known."""

    def _rehearse(self) -> None:
        """Adapts once, to nothing: the first episode finds the libraries loaded, and memory does not grow after."""
        nothing = np.zeros(self.observation_size)
        self.reset(nothing)
        for _ in range(self.probe_steps + 1):
            self.act(nothing)
        self._begin_episode()
        self._begun = False

    def _check(self, observation: Any) -> np.ndarray | None:
        """A copy of an observation [o] as float32; None where the last action is to be held."""
        s = _array(observation, self.observation_size, "observation")
        if np.isfinite(s).all():
            return s
        if self._hold:
            return None
        raise AdapterError(
            f"observation has numbers that are not finite, expected {self.observation_size} finite numbers"
        )


def _array(given: Any, size: int, what: str) -> np.ndarray:
    """A copy of numbers [size] as float32."""
    expected = f"expected {size} finite numbers"
    try:
        array = np.asarray(given)
    except Exception as error:
        raise AdapterError(f"{what} of type {type(given).__name__} is no array, {expected}") from error
    if array.dtype.kind not in "fiub" or hasattr(given, "filled"):  # a masked array; numpy.ma takes 7 MB
        raise AdapterError(f"{what} of type {type(given).__name__} holds {array.dtype}, {expected}")
    if array.shape != (size,):
        raise AdapterError(f"{what} has shape {array.shape}, {expected}")
    with np.errstate(all="ignore"):
        return array.astype(np.float32)


class Network:
    """Linear layers `name.0`, `name.1`, ... with a function between them."""

    def __init__(self, weights: Weights, name: str, between: Any, layers: int = 3):
        self._layers = [(weights[f"{name}.{i}.weight"], weights[f"{name}.{i}.bias"]) for i in range(layers)]
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


def relu(x: np.ndarray) -> np.ndarray:
    """The positive part."""
    return np.maximum(x, ZERO)
