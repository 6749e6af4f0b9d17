"""Environments of Gymnasium, stepped in Python on the host: for families of the user's own.

Such an environment keeps its state to itself, so a state here says how to get there: the start of the episode and the
actions since. The host keeps the environments of episodes under way at hand, under a fingerprint of their history, and
plays a history again from its start where none is. So the step is a function of its arguments, as it must be: an
episode can be continued in two ways, and a run that was stopped goes on to the same numbers, if environments do the
same after the same seed and actions (`pdvf check-family` looks).

A start is one of `STARTS` seeds for each context; observations at the start are known beforehand, and no call of the
host is needed to begin an episode.
"""

from __future__ import annotations

import hashlib
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

    history: Array  # [n, T, a] actions so far
    mark: Array  # [n, 2] fingerprint of start and history, two words
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
        start = jax.vmap(lambda key: jax.random.randint(key, (), 0, STARTS))(keys)
        known = jnp.asarray(np.asarray(self.contexts, np.float32))
        row = jnp.argmin(jnp.sum((jnp.asarray(contexts)[:, None] - known[None]) ** 2, axis=-1), axis=-1)
        observation = jnp.asarray(self._host.starts)[row, start]
        nothing = jnp.zeros_like(start)
        history = jnp.zeros((start.shape[0], self.family.horizon, self.family.action.size))
        mark = jnp.stack([start, nothing], axis=-1).astype(jnp.uint32)
        return Token(history, mark, start, nothing, nothing.astype(bool), observation), observation

    def step(self, contexts: Array, states: Token, actions: Array) -> tuple[Token, Outcome]:
        """States and outcomes after actions [n, a]."""
        box = self.family.action
        actions = jnp.clip(actions, box.low, box.high)
        shape = states.start.shape
        result = (
            jax.ShapeDtypeStruct(states.mark.shape, jnp.uint32),
            jax.ShapeDtypeStruct(states.observation.shape, jnp.float32),
            jax.ShapeDtypeStruct(shape, jnp.float32),
            jax.ShapeDtypeStruct(shape, bool),
        )
        arguments = (jnp.asarray(contexts), *states, actions)
        made = jax.pure_callback(self._host.step, result, *arguments, vmap_method="broadcast_all")
        mark, observation, reward, over = made
        history = jax.vmap(lambda h, t, a: h.at[t].set(a))(states.history, states.time, actions)
        following = Token(history, mark, states.start, states.time + 1, states.over | over, observation)
        return following, Outcome(observation, reward, over)

    @cached_property
    def _host(self) -> _Host:
        return _Host(self.family, self.contexts)


Key = tuple[bytes, bytes]
"""A context and the mark of a history in it."""


class _Made(NamedTuple):
    """What a step gave."""

    mark: np.ndarray
    observation: np.ndarray
    reward: np.float32
    ended: bool


class _Host:
    """The side of the engine outside of JAX."""

    def __init__(self, family: HostFamily, contexts: tuple[tuple[float, ...], ...]):
        self.family = family
        self._lock = threading.Lock()
        self._idle: dict[bytes, list[Any]] = {}
        self._live: OrderedDict[Key, Any] = OrderedDict()  # environments by the history they have gone through
        self._most = 1024
        self.starts = np.stack([self._starts(np.asarray(context, np.float32)) for context in contexts])

    def _starts(self, context: np.ndarray) -> np.ndarray:
        environment = self._take(context.tobytes())
        made = [self._reset(environment, context.tobytes(), seed) for seed in range(STARTS)]
        self._idle.setdefault(context.tobytes(), []).append(environment)
        return np.stack(made)

    def step(self, contexts: Any, history: Any, mark: Any, start: Any, time: Any, over: Any, seen: Any, actions: Any):
        """One step of every episode that is not over: arguments [..., ...] as JAX hands them over."""
        lead = np.asarray(start).shape
        count = int(np.prod(lead))
        contexts = np.ascontiguousarray(contexts, np.float32).reshape(count, -1)
        actions = np.ascontiguousarray(actions, np.float32).reshape(count, -1)
        histories = np.asarray(history).reshape(count, -1, actions.shape[1])
        start, time, over = (np.asarray(x).reshape(count) for x in (start, time, over))
        mark, seen = np.array(mark, np.uint32).reshape(count, 2), np.array(seen, np.float32).reshape(count, -1)
        reward, ended = np.zeros(count, np.float32), over.copy()
        with self._lock:
            self._most = max(self._most, 3 * count)
            known: dict[tuple[Key, bytes], _Made] = {}  # rows that do the same are played once
            for i in np.flatnonzero(~over):
                key, action = (contexts[i].tobytes(), mark[i].tobytes()), actions[i].tobytes()
                made = known.get((key, action))
                if made is None:
                    past = histories[i, : time[i]]
                    made = known[key, action] = self._advance(key, int(start[i]), past, actions[i])
                mark[i], seen[i], reward[i], ended[i] = made
            self._require_finite(contexts, seen, reward)
            while len(self._live) > self._most:  # episodes that nobody goes on with
                (context, _), environment = self._live.popitem(last=False)
                self._idle.setdefault(context, []).append(environment)
        shaped = mark.reshape(*lead, 2), seen.reshape(*lead, -1)
        return *shaped, reward.reshape(lead), ended.reshape(lead)

    def _advance(self, key: Key, start: int, past: np.ndarray, action: np.ndarray) -> _Made:
        """One step of the environment that has this history; if there is none, one goes through it now."""
        context, mark = key
        environment = self._live.pop(key, None)
        if environment is None:
            environment = self._take(context)
            self._reset(environment, context, start)
            for earlier in past:
                self._step(environment, context, earlier)
        observation, reward, ended = self._step(environment, context, action)
        following = hashlib.blake2b(mark + action.tobytes(), digest_size=8).digest()
        if ended or len(past) + 1 >= self.family.horizon:
            self._idle.setdefault(context, []).append(environment)
        else:
            displaced = self._live.pop((context, following), None)
            if displaced is not None:
                self._idle.setdefault(context, []).append(displaced)
            self._live[context, following] = environment
        return _Made(np.frombuffer(following, np.uint32), observation, reward, ended)

    def _take(self, context: bytes) -> Any:
        idle = self._idle.setdefault(context, [])
        return idle.pop() if idle else self._guard("make_env", context, lambda: self.family.make(self._named(context)))

    def _reset(self, environment: Any, context: bytes, seed: int) -> np.ndarray:
        observation = self._guard("reset", context, lambda: environment.reset(seed=seed)[0])
        numbers = self._numbers("reset", context, observation)
        if not np.all(np.isfinite(numbers)):
            where = f"in reset in {self._named(context)}"
            self._fault(f"gave an observation of numbers that are not finite {where}, expected {numbers.size} finite")
        return numbers

    def _step(self, environment: Any, context: bytes, action: np.ndarray) -> tuple[np.ndarray, np.float32, bool]:
        given = np.array(action, np.float32)  # a copy: an environment may write into what it is given
        made = self._guard("step", context, lambda: environment.step(given))
        return self._numbers("step", context, made[0]), np.float32(made[1]), bool(made[2])

    def _require_finite(self, contexts: np.ndarray, seen: np.ndarray, reward: np.ndarray) -> None:
        """Looks at a whole batch at once: row by row it would take a third of the time of a simple environment."""
        for i in np.flatnonzero(~np.isfinite(reward))[:1]:
            where = f"in context {self._named(contexts[i].tobytes())}"
            self._fault(f"gave a reward of {reward[i]} {where}, expected a finite number")
        for i in np.flatnonzero(~np.isfinite(seen).all(axis=1))[:1]:
            where = f"in step in {self._named(contexts[i].tobytes())}"
            self._fault(f"gave an observation of numbers that are not finite {where}, expected {seen.shape[1]} finite")

    def _numbers(self, where: str, context: bytes, observation: Any) -> np.ndarray:
        numbers, size = np.asarray(observation, np.float32).reshape(-1), self.family.observation.size
        if numbers.shape[0] != size:
            given = f"{numbers.shape[0]} numbers in {where} in {self._named(context)}"
            self._fault(f"gave an observation of {given}, expected {size} finite")
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
