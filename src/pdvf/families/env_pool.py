"""Users' environments in worker processes: what one of them does wrong is one clear line, never the end of the program.

The pool keeps environments of episodes under way at hand, under the context and a fingerprint of the history that each
has gone through; which process holds one changes nothing but the time it takes. Workers are started as they are needed,
at most one a core, and one that dies or does not return in time ends the others too: the next call starts anew.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from pdvf.core.processes import cores
from pdvf.core.validation import ConfigError
from pdvf.families import loading as targets
from pdvf.families.base import Outcome
from pdvf.families.env_process import FUNCTION, FUNCTIONS, LOADING, POSITION, WAITING, Start, find_make
from pdvf.families.env_workers import Fault, Worker, WorkerLost, simulators, start_workers

STEP_TIMEOUT = 60.0
"""Seconds that an environment may take for a step, unless its family says otherwise."""
WORTH_A_WORKER = 500e-6
"""Seconds of stepping, in a batch, from which on one more process costs less than it saves."""
WORTH_A_START = 1.0
"""Seconds of work from which on it pays to start one more process for this work alone."""

TRIES = 3
"""How often a step is tried again where workers are lost with their node."""

Key = tuple[bytes, bytes]
"""A context (float32 numbers) and the mark of a history in it."""
Place = tuple[int, int]
"""Worker and slot of an environment."""


class UserEnvError(ConfigError):
    """A user's environment has raised, exited, crashed, not returned, or returned what it must not."""


def fault_of(error: BaseException) -> UserEnvError | None:
    """The fault behind an error: JAX raises an error of its own whose text ends with ours."""
    found = re.findall(rf"^(?:[\w.]*\.)?{UserEnvError.__name__}: (.+)$", str(error), re.MULTILINE)
    return UserEnvError(found[-1]) if found else None


class Move(NamedTuple):
    """One step of one episode."""

    key: Key
    start: int  # seed
    past: np.ndarray  # [t, a]
    action: np.ndarray  # [a]


class EnvPool:
    """Environments of one family."""

    def __init__(
        self,
        name: str,
        make: Callable[[dict[str, float]], Any],
        named: Callable[[np.ndarray], dict[str, float]],
        origin: targets.Origin | None = None,
        timeout: float = STEP_TIMEOUT,
        workers: int | None = None,
    ):
        self._name, self._make, self._named, self._origin = name, make, named, origin
        self._timeout, self._workers_wanted = timeout, workers
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._live: OrderedDict[Key, Place] = OrderedDict()  # environments by the history they have gone through
        self._idle: dict[tuple[int, bytes], list[int]] = {}  # slots by worker and context
        self._slots = 0
        self._most = 1024  # of those at hand
        self._seconds = 0.0  # of one reset or step, as last seen
        self._found = 0  # workers, where there was room for no more
        weakref.finalize(self, _close, self._workers, os.getpid())

    def spaces(self, context: bytes) -> list[tuple[str, np.ndarray | None, np.ndarray | None]]:
        """The observation and the action space in words and, of a Box with one axis, its bounds."""
        with self._at_work():
            return self._ask_about([context], 1, "spaces")[0]

    def starts(self, contexts: Sequence[bytes], seeds: int, size: int) -> np.ndarray:
        """First observations [n, seeds, o] of size `size`."""
        with self._at_work():
            # The first alone tells how long a reset takes, and with that how many workers the others need.
            found = self._ask_about(contexts[:1], 1, "starts", seeds, size)
            count = int((len(contexts) - 1) * seeds * found[0][1] / WORTH_A_START)
            found += self._ask_about(contexts[1:], min(count, len(contexts) - 1), "starts", seeds, size)
            for _, seconds in found:
                self._measure(seconds)
            return np.stack([observations for observations, _ in found])

    def film(self, context: bytes, seed: int, actions: np.ndarray, shown: Sequence[int]) -> np.ndarray | None:
        """Pictures [n, height, width, 3] of an episode of actions [t, a] after `shown` of its steps.

        None where the environments have no `render_mode="rgb_array"`.
        """
        with self._at_work():
            return self._ask_about([context], 1, "film", seed, actions, list(shown))[0]

    def _ask_about(self, contexts: Sequence[bytes], count: int, command: str, *arguments: Any) -> list[Any]:
        """Answers to a command about one environment in each context, from so many workers if there may be as many."""
        workers = self._first(count)
        taken = [self._take(i % len(workers), context) for i, context in enumerate(contexts)]
        share = {worker: slice(worker, None, len(workers)) for worker in workers}
        asked = {w: _Request((command, taken[share[w]], *arguments), contexts[share[w]]) for w in workers}
        answers: list[Any] = [None] * len(contexts)
        for worker, found in self._ask(asked).items():
            answers[share[worker]] = found
        for i, (context, (slot, _)) in enumerate(zip(contexts, taken, strict=True)):
            self._free(context, (i % len(workers), slot))
        return answers

    def step(self, moves: Sequence[Move], following: Sequence[bytes], horizon: int, size: int) -> Outcome:
        """One step of each episode, no two alike; `following` are the marks of the histories that they lead to."""
        for _ in range(TRIES):
            with contextlib.suppress(WorkerLost):  # others play the histories again
                return self._step(moves, following, horizon, size)
        return self._step(moves, following, horizon, size)

    def _step(self, moves: Sequence[Move], following: Sequence[bytes], horizon: int, size: int) -> Outcome:
        with self._at_work():
            self._most = max(self._most, 3 * len(moves))
            places = [self._live.pop(move.key, None) for move in moves]
            if None in places:
                count = int(len(moves) * self._seconds / WORTH_A_WORKER)
                self._first(min(count if self._workers_wanted is None else len(moves), len(moves)))
            load = Counter(place[0] for place in places if place is not None)
            shares: dict[int, list[int]] = {}  # rows of each worker
            starts: dict[int, Start] = {}  # of rows whose environment has to get there first
            for i, move in enumerate(moves):
                place, context = places[i], move.key[0]
                if place is None:
                    workers = range(len(self._workers))
                    worker = min(workers, key=lambda w: (load[w], not self._idle.get((w, context))))
                    load[worker] += 1 + len(move.past)
                    slot, to_make = self._take(worker, context)
                    places[i] = place = worker, slot
                    starts[i] = Start(to_make, move.start, move.past)
                shares.setdefault(place[0], []).append(i)
            at = cast("list[Place]", places)  # each has one now
            asked = {}
            for worker, share in shares.items():
                actions = np.stack([moves[i].action for i in share])
                fresh = {row: starts[i] for row, i in enumerate(share) if i in starts}
                command = ("step", size, [at[i][1] for i in share], actions, fresh)
                asked[worker] = _Request(command, [moves[i].key[0] for i in share])
            count = len(moves)
            empty: Any = np.empty((count, size), np.float32), np.empty(count, np.float32), np.empty(count, bool)
            made = Outcome(*empty)
            for worker, (*moved, seconds) in self._ask(asked).items():
                self._measure(seconds)
                for whole, part in zip(made, moved, strict=True):
                    whole[shares[worker]] = part
            for move, place, mark, ended in zip(moves, at, following, made.terminated.tolist(), strict=True):
                key, unused = (move.key[0], mark), place
                if not ended and len(move.past) + 1 < horizon:
                    unused = self._live.pop(key, None)  # another that has come to the same
                    self._live[key] = place
                self._free(move.key[0], unused)
            while len(self._live) > self._most:  # episodes that nobody goes on with
                (context, _), place = self._live.popitem(last=False)
                self._free(context, place)
            return made

    def _free(self, context: bytes, place: Place | None) -> None:
        """Lets the next episode in this context have the environment at a place."""
        if place is not None:
            self._idle.setdefault((place[0], context), []).append(place[1])

    def close(self) -> None:
        """Ends the workers; the next call starts new ones."""
        _close(self._workers, os.getpid())
        self._found = 0
        self._live.clear()
        self._idle.clear()

    def _name_numbers(self, context: bytes) -> dict[str, float]:
        return self._named(np.frombuffer(context, np.float32))

    def _fault(self, words: str) -> UserEnvError:
        return UserEnvError(f"an environment of {self._name} {words}: mend it and run the same command again")

    @property
    def _limit(self) -> int:
        return self._found or simulators() or self._workers_wanted or cores()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """One call at a time; after one that failed, nothing is known of the environments any more."""
        with self._lock:
            try:
                yield
            except BaseException:
                self.close()
                raise

    def _measure(self, seconds: float) -> None:
        self._seconds = seconds if not self._seconds else 0.8 * self._seconds + 0.2 * seconds

    def _take(self, worker: int, context: bytes) -> tuple[int, dict[str, float] | None]:
        """A slot of this worker for an environment, and the context if it has to be made."""
        idle = self._idle.get((worker, context))
        if idle:
            return idle.pop(), None
        self._slots += 1
        return self._slots, self._name_numbers(context)

    def _first(self, count: int) -> range:
        """The first workers, started if need be: one at least, no more than there may be."""
        count, there = max(1, min(count, self._limit)), len(self._workers)
        if there < count:
            source = self._source()
            try:
                self._workers.extend(start_workers(source, self._origin, count - there))
            except OSError as error:
                raise self._fault(f"has no process to run in ({error}), expected room for {count}") from None
            self._found = len(self._workers) if len(self._workers) < count else 0
            for worker in range(there, len(self._workers)):
                self._result(worker, [])
        return range(min(count, len(self._workers)))

    def _source(self) -> bytes:
        """What a worker calls, once it has unpickled it, for the function that makes environments."""
        if self._origin is not None:
            return pickle.dumps(partial(find_make, self._origin))
        import cloudpickle

        try:
            return pickle.dumps(partial(pickle.loads, cloudpickle.dumps(self._make)))
        except Exception as error:
            raise self._fault(
                f"cannot be made in another process, since make_env cannot be pickled ({type(error).__name__}: "
                f"{error}); expected a function that makes all it needs"
            ) from None

    def _ask(self, asked: Mapping[int, _Request]) -> dict[int, Any]:
        """The answers of workers to their requests."""
        for worker, request in asked.items():
            self._workers[worker].send(request.command, self._timeout)
        return {worker: self._result(worker, request.contexts) for worker, request in asked.items()}

    def _result(self, worker: int, contexts: Sequence[bytes]) -> Any:
        answer = self._workers[worker].result()
        if isinstance(answer, Fault):
            raise self._fault(f"{answer.before} {self._at(answer.at, contexts)}{answer.after}")
        return answer

    def _at(self, at: Sequence[int], contexts: Sequence[bytes]) -> str:
        """Where a worker is, in words."""
        function, position = at[FUNCTION], at[POSITION]
        if function == WAITING:
            return "between two steps"
        if function == LOADING or position >= len(contexts):
            return "while its file was loaded"
        return f"in {FUNCTIONS[function]} in context {self._name_numbers(contexts[position])}"


class _Request(NamedTuple):
    command: tuple[Any, ...]
    contexts: Sequence[bytes]  # of its rows


def _close(workers: list[Worker], owner: int) -> None:
    """Ends workers: those that do not end by themselves within a second are killed."""
    if os.getpid() != owner:  # a fork of the process that has started them
        return
    for worker in workers:
        worker.close()
    until = time.monotonic() + 1.0
    for worker in workers:
        worker.release(until)
    workers.clear()
