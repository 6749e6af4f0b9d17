"""Environments of Gymnasium, stepped in Python on the host: for families of the user's own.

Such an environment keeps its state to itself, so an engine that is a pure function of its arguments cannot hold it. A
state here is a token: which start an episode has, how far it is, and a number that tells it from all others. The host
keeps one environment for every token it has met. What follows from that:

- A start is one of `STARTS` seeds for each context; observations at the start are known beforehand and no call of the
  host is needed to begin an episode.
- An episode whose environment is gone (a run that was stopped goes on) begins anew from the same start.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.checked import ConfigError
from pdvf.families.base import Array, HostFamily, Outcome

STARTS = 64  # seeds an episode may start from, for each context
FAULTS: list[str] = []
"""What went wrong in a user's environment, in words; an error that passes through JAX loses its type."""


class Token(NamedTuple):
    """n episodes."""

    number: Array  # [n] tells an episode from all others
    start: Array  # [n] which of the starts
    time: Array  # [n] steps made
    over: Array  # [n] whether the environment has ended the episode
    observation: Array  # [n, o]


@dataclass(frozen=True)
class HostEngine:
    """Steps a family whose environments are Python objects."""

    family: HostFamily
    contexts: tuple[tuple[float, ...], ...]
    """All contexts it will be asked for."""

    def reset(self, keys: Array, contexts: Array) -> tuple[Token, Array]:
        """States and observations [n, o] at the start of an episode."""

        def draw(key: Array) -> tuple[Array, Array]:
            start_key, number_key = jax.random.split(key)
            return jax.random.randint(start_key, (), 0, STARTS), jax.random.randint(number_key, (), 0, 2**31 - 1)

        start, number = jax.vmap(draw)(keys)
        known = jnp.asarray(np.asarray(self.contexts, np.float32))
        row = jnp.argmin(jnp.sum((jnp.asarray(contexts)[:, None] - known[None]) ** 2, axis=-1), axis=-1)
        observation = jnp.asarray(self._host.starts)[row, start]
        nothing = jnp.zeros_like(start)
        return Token(number, start, nothing, nothing.astype(bool), observation), observation

    def step(self, contexts: Array, states: Token, actions: Array) -> tuple[Token, Outcome]:
        """States and outcomes after actions [n, a]."""
        box = self.family.action
        actions = jnp.clip(actions, box.low, box.high)
        shape = states.number.shape
        result = (
            jax.ShapeDtypeStruct(states.observation.shape, jnp.float32),
            jax.ShapeDtypeStruct(shape, jnp.float32),
            jax.ShapeDtypeStruct(shape, bool),
        )
        arguments = (jnp.asarray(contexts), *states, actions)
        observation, reward, over = jax.pure_callback(self._host.step, result, *arguments, vmap_method="broadcast_all")
        following = Token(states.number, states.start, states.time + 1, states.over | over, observation)
        return following, Outcome(observation, reward, over)

    @cached_property
    def _host(self) -> _Host:
        return _Host(self.family, self.contexts)


class _Live(NamedTuple):
    """An environment in the middle of an episode."""

    environment: Any
    context: bytes
    time: int


class _Host:
    """The side of the engine outside of JAX."""

    def __init__(self, family: HostFamily, contexts: tuple[tuple[float, ...], ...]):
        self.family = family
        self._lock = threading.Lock()
        self._idle: dict[bytes, list[Any]] = {}
        self._live: OrderedDict[int, _Live] = OrderedDict()
        self._most = 1024
        self.starts = np.stack([self._starts(np.asarray(context, np.float32)) for context in contexts])

    def _starts(self, context: np.ndarray) -> np.ndarray:
        environment = self._take(context.tobytes())
        made = [self._reset(environment, context.tobytes(), seed) for seed in range(STARTS)]
        self._idle.setdefault(context.tobytes(), []).append(environment)
        return np.stack(made)

    def step(self, contexts: Any, number: Any, start: Any, time: Any, over: Any, observation: Any, actions: Any):
        """One step of every episode that is not over: arguments [..., ...] as JAX hands them over."""
        lead = np.asarray(number).shape
        count = int(np.prod(lead))
        rows = [np.asarray(x).reshape(count, -1) for x in (contexts, number, start, time, over, actions)]
        contexts, number, start, time, over, actions = rows
        seen = np.array(observation, np.float32).reshape(count, -1)
        reward, ended = np.zeros(count, np.float32), over[:, 0].copy()
        with self._lock:
            self._most = max(self._most, 3 * count)
            for i in np.flatnonzero(~over[:, 0]):
                token, context = int(number[i, 0]), np.ascontiguousarray(contexts[i], np.float32).tobytes()
                live = self._live.pop(token, None)
                if live is None or live.time != time[i, 0] or live.context != context:
                    environment = self._take(context) if live is None or live.context != context else live.environment
                    self._reset(environment, context, int(start[i, 0]))
                    live = _Live(environment, context, int(time[i, 0]))
                seen[i], reward[i], ended[i] = self._step(live, actions[i])
                if ended[i] or live.time + 1 >= self.family.horizon:
                    self._idle.setdefault(context, []).append(live.environment)
                else:
                    self._live[token] = live._replace(time=live.time + 1)
            while len(self._live) > self._most:  # episodes that nobody goes on with
                _, old = self._live.popitem(last=False)
                self._idle.setdefault(old.context, []).append(old.environment)
        return seen.reshape(*lead, -1), reward.reshape(lead), ended.reshape(lead)

    def _take(self, context: bytes) -> Any:
        idle = self._idle.setdefault(context, [])
        return idle.pop() if idle else self._guard("make_env", context, lambda: self.family.make(self._named(context)))

    def _reset(self, environment: Any, context: bytes, seed: int) -> np.ndarray:
        observation = self._guard("reset", context, lambda: environment.reset(seed=seed)[0])
        return self._numbers("reset", context, observation)

    def _step(self, live: _Live, action: np.ndarray) -> tuple[np.ndarray, np.float32, bool]:
        shaped = action.astype(np.float32)
        made = self._guard("step", live.context, lambda: live.environment.step(shaped))
        observation, reward, terminated = self._numbers("step", live.context, made[0]), float(made[1]), bool(made[2])
        if not np.isfinite(reward):
            self._fault(f"gave a reward of {reward} in context {self._named(live.context)}, expected a finite number")
        return observation, np.float32(reward), terminated

    def _numbers(self, where: str, context: bytes, observation: Any) -> np.ndarray:
        numbers, size = np.asarray(observation, np.float32).reshape(-1), self.family.observation.size
        if numbers.shape[0] != size or not np.all(np.isfinite(numbers)):
            given = f"{numbers.shape[0]} numbers" if numbers.shape[0] != size else "numbers that are not finite"
            self._fault(f"gave an observation of {given} in {where} in {self._named(context)}, expected {size} finite")
        return numbers

    def _guard(self, where: str, context: bytes, function: Any) -> Any:
        try:
            return function()
        except Exception as error:
            self._fault(f"raised {type(error).__name__} in {where} in context {self._named(context)}: {error}")

    def _named(self, context: bytes) -> dict[str, float]:
        values = np.frombuffer(context, np.float32).tolist()
        return dict(zip(self.family.context_names, (round(v, 6) for v in values), strict=True))

    def _fault(self, words: str) -> None:
        line = f"an environment of {self.family.name} {words}: mend it and run the same command again"
        FAULTS.append(line)
        raise ConfigError(line)
