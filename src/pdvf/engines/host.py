"""Environments of Gymnasium, stepped in Python on the host: for families of the user's own.

Such an environment keeps its state to itself, so a state here says how to get there: the start of the episode and the
actions since. A pool of worker processes (`families/env_pool.py`) keeps those of episodes under way at hand, under
a fingerprint of their history, and plays a history again from its start where none is. So the step is a function of its
arguments, as it must be: an episode can be continued in two ways, and a run that was stopped goes on to the same
numbers, if environments do the same after the same seed and actions (`pdvf check-family` looks).

A start is one of `STARTS` seeds for each context; observations at the start are known beforehand, and no call of the
host is needed to begin an episode.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array
from pdvf.families import loading as targets
from pdvf.families.base import HostFamily, Outcome
from pdvf.families.custom import GymFamily, by_name
from pdvf.families.env_pool import EnvPool, Key, Move, UserEnvError, fault_of

STARTS = 64  # seeds an episode may start from, for each context


def _is_no_fault(record: logging.LogRecord) -> bool:
    """JAX logs what a callback raises, traceback and all; a fault of an environment is told in one line elsewhere."""
    return not (record.exc_info and isinstance(record.exc_info[1], UserEnvError))


logging.getLogger("jax._src.callback").addFilter(_is_no_fault)
_usual_hook = sys.unraisablehook


def _no_faults(unraisable: Any) -> None:
    """As before, but for faults of environments: on several devices JAX raises them once more when a process ends."""
    if unraisable.exc_value is None or fault_of(unraisable.exc_value) is None:
        _usual_hook(unraisable)


sys.unraisablehook = _no_faults


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


class _Host:
    """The side of the engine outside of JAX."""

    def __init__(self, family: HostFamily, contexts: tuple[tuple[float, ...], ...]):
        self._horizon, self._size = family.horizon, family.observation.size
        if isinstance(family, GymFamily):
            self._pool = family.pool
        else:
            named = partial(by_name, family.context_names)
            self._pool = EnvPool(family.name, family.make, named, targets.origin(family))
        self._fault: UserEnvError | None = None
        known = [np.asarray(context, np.float32).tobytes() for context in contexts]
        self.starts = self._pool.starts(known, STARTS, self._size)

    def step(self, contexts: Any, history: Any, mark: Any, start: Any, time: Any, over: Any, seen: Any, actions: Any):
        """One step of every episode that is not over: arguments [..., ...] as JAX hands them over."""
        if self._fault is not None:  # other devices have steps to ask for, too
            raise self._fault
        lead = np.asarray(start).shape
        count = int(np.prod(lead))
        contexts = np.ascontiguousarray(contexts, np.float32).reshape(count, -1)
        actions = np.ascontiguousarray(actions, np.float32).reshape(count, -1)
        histories = np.asarray(history).reshape(count, -1, actions.shape[1])
        start, time, over = (np.asarray(x).reshape(count) for x in (start, time, over))
        mark, seen = np.array(mark, np.uint32).reshape(count, 2), np.array(seen, np.float32).reshape(count, -1)
        reward, ended = np.zeros(count, np.float32), over.copy()
        rows: dict[tuple[Key, bytes], int] = {}  # those that do the same are played once
        moves: list[Move] = []
        playing, which = np.flatnonzero(~over), []
        for i in playing:
            key, action = (contexts[i].tobytes(), mark[i].tobytes()), actions[i].tobytes()
            row = rows.setdefault((key, action), len(moves))
            which.append(row)
            if row == len(moves):
                moves.append(Move(key, int(start[i]), histories[i, : time[i]], actions[i]))
        if moves:
            following = [hashlib.blake2b(key[1] + action, digest_size=8).digest() for key, action in rows]
            try:
                made = self._pool.step(moves, following, self._horizon, self._size)
            except UserEnvError as fault:
                self._fault = fault
                raise
            mark[playing] = np.frombuffer(b"".join(following), np.uint32).reshape(-1, 2)[which]
            seen[playing], reward[playing], ended[playing] = (x[which] for x in made)
        shaped = mark.reshape(*lead, 2), seen.reshape(*lead, -1)
        return *shaped, reward.reshape(lead), ended.reshape(lead)
