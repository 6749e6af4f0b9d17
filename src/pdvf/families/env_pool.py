"""Users' environments in worker processes: what one of them does wrong is one clear line, never the end of the program.

The pool keeps environments of episodes under way at hand, under the context and a fingerprint of the history that each
has gone through; which process holds one changes nothing but the time it takes. Workers are started as they are needed,
at most one a core, and one that dies or does not return in time ends the others too: the next call starts anew.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, cast

import numpy as np

from pdvf.core.processes import cores, require_posix
from pdvf.core.validation import ConfigError
from pdvf.families import loading as targets
from pdvf.families.env_process import (
    CALLS,
    FUNCTION,
    FUNCTIONS,
    LOADING,
    POSITION,
    SHARED_BYTES,
    WAITING,
    Source,
    Start,
)

STEP_TIMEOUT = 60.0
"""Seconds that an environment may take for a step, unless its family says otherwise."""
LOAD_TIMEOUT = 300.0
"""Seconds in which a worker must have imported the user's file."""
WORTH_A_WORKER = 500e-6
"""Seconds of stepping, in a batch, from which on one more process costs less than it saves."""
WORTH_A_START = 1.0
"""Seconds of work from which on it pays to start one more process for this work alone."""

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


class Moved(NamedTuple):
    """What n of them led to."""

    observation: np.ndarray  # [n, o]
    reward: np.ndarray  # [n]
    ended: np.ndarray  # [n]


class EnvPool:
    """Environments of one family."""

    def __init__(
        self,
        name: str,
        make: Callable[[dict[str, float]], Any],
        named: Callable[[bytes], dict[str, float]],
        origin: targets.Origin | None = None,
        timeout: float = STEP_TIMEOUT,
        workers: int | None = None,
    ):
        self._name, self._make, self._named, self._origin = name, make, named, origin
        self._timeout, self._workers_wanted = timeout, workers
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._live: OrderedDict[Key, Place] = OrderedDict()  # environments by the history they have gone through
        self._idle: dict[tuple[int, bytes], list[int]] = {}  # slots by worker and context
        self._slots = 0
        self._most = 1024  # of those at hand
        self._seconds = 0.0  # of one reset or step, as last seen
        weakref.finalize(self, _close, self._workers, os.getpid())

    def spaces(self, context: bytes) -> list[tuple[str, np.ndarray | None, np.ndarray | None]]:
        """The observation and the action space in words and, of a Box with one axis, its bounds."""
        with self._at_work():
            (worker,) = self._first(1)
            slot = self._new_slot()
            described = self._ask({worker: _Request(("spaces", slot, self._named(context)), [context])})[worker]
            self._free(context, (worker, slot))
            return described

    def starts(self, contexts: Sequence[bytes], seeds: int, size: int) -> np.ndarray:
        """First observations [n, seeds, o] of size `size`."""
        with self._at_work():
            # The first alone tells how long a reset takes, and with that how many workers the others need.
            first = self._starts([0], contexts[:1], seeds, size)
            count = int((len(contexts) - 1) * seeds * self._seconds / WORTH_A_START)
            workers = self._first(max(1, min(count, self._limit, len(contexts) - 1)))
            return np.concatenate([first, self._starts(workers, contexts[1:], seeds, size)])

    def _starts(self, workers: Sequence[int], contexts: Sequence[bytes], seeds: int, size: int) -> np.ndarray:
        asked: dict[int, _Request] = {}
        made = np.empty((len(contexts), seeds, size), np.float32)
        shares = {w: list(range(len(contexts)))[i :: len(workers)] for i, w in enumerate(workers)}
        self._first(len(workers))
        for worker, share in shares.items():
            taken = [self._take(worker, contexts[i]) for i in share]
            slots = [slot for slot, _ in taken]
            if share:
                command = ("starts", size, seeds, slots, [context for _, context in taken])
                asked[worker] = _Request(command, [contexts[i] for i in share])
        for worker, (observations, seconds) in self._ask(asked).items():
            made[shares[worker]] = observations
            self._measure(seconds)
            for i, slot in zip(shares[worker], asked[worker].command[3], strict=True):
                self._free(contexts[i], (worker, slot))
        return made

    def step(self, moves: Sequence[Move], following: Sequence[bytes], horizon: int, size: int) -> Moved:
        """One step of each episode, no two alike; `following` are the marks of the histories that they lead to."""
        with self._at_work():
            self._most = max(self._most, 3 * len(moves))
            places = [self._live.pop(move.key, None) for move in moves]
            if None in places:
                self._grow_for(len(moves))
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
            made = Moved(np.empty((count, size), np.float32), np.empty(count, np.float32), np.empty(count, bool))
            for worker, (*moved, seconds) in self._ask(asked).items():
                self._measure(seconds)
                for whole, part in zip(made, moved, strict=True):
                    whole[shares[worker]] = part
            for move, place, mark, ended in zip(moves, at, following, made.ended.tolist(), strict=True):
                key, unused = (move.key[0], mark), place
                if not ended and len(move.past) + 1 < horizon:
                    unused = self._live.pop(key, None)  # another that has come to the same
                    self._live[key] = place
                self._free(move.key[0], unused)
            while len(self._live) > self._most:  # episodes that nobody goes on with
                (context, _), place = self._live.popitem(last=False)
                self._free(context, place)
            return made

    def film(self, context: bytes, seed: int, actions: np.ndarray, shown: Sequence[int]) -> np.ndarray | None:
        """Pictures [n, height, width, 3] of an episode of actions [t, a] after `shown` of its steps.

        None where the environments have no `render_mode="rgb_array"`.
        """
        with self._at_work():
            (worker,) = self._first(1)
            slot, to_make = self._take(worker, context)
            command = ("film", slot, to_make, seed, actions, list(shown))
            pictures = self._ask({worker: _Request(command, [context])})[worker]
            self._free(context, (worker, slot))
            return pictures

    def _free(self, context: bytes, place: Place | None) -> None:
        """Lets the next episode in this context have the environment at a place."""
        if place is not None:
            self._idle.setdefault((place[0], context), []).append(place[1])

    def close(self) -> None:
        """Ends the workers; the next call starts new ones."""
        _close(self._workers, os.getpid())
        self._live.clear()
        self._idle.clear()

    def _fault(self, words: str) -> UserEnvError:
        return UserEnvError(f"an environment of {self._name} {words}: mend it and run the same command again")

    @property
    def _limit(self) -> int:
        return self._workers_wanted or cores()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """One call at a time; after one that failed, nothing is known of the environments any more."""
        with self._lock:
            try:
                yield
            except BaseException:
                self.close()
                raise

    def _grow_for(self, count: int) -> None:
        """Starts as many workers as suit a batch of `count` steps."""
        suited = int(count * self._seconds / WORTH_A_WORKER) if self._workers_wanted is None else count
        self._first(max(1, min(suited, self._limit, count)))

    def _measure(self, seconds: float) -> None:
        self._seconds = seconds if not self._seconds else 0.8 * self._seconds + 0.2 * seconds

    def _take(self, worker: int, context: bytes) -> tuple[int, dict[str, float] | None]:
        """A slot of this worker for an environment, and the context if it has to be made."""
        idle = self._idle.get((worker, context))
        if idle:
            return idle.pop(), None
        return self._new_slot(), self._named(context)

    def _new_slot(self) -> int:
        self._slots += 1
        return self._slots

    def _first(self, count: int) -> range:
        """The first workers, started if need be."""
        missing = range(len(self._workers), count)
        if missing:
            source = self._source()
            try:
                self._workers.extend(_Worker(source, self._origin) for _ in missing)
            except OSError as error:
                raise self._fault(f"has no process to run in ({error}), expected room for {count}") from None
            self._collect({w: [] for w in missing}, LOAD_TIMEOUT)
        return range(count)

    def _source(self) -> bytes:
        if self._origin is not None:
            return pickle.dumps(Source(self._origin, b""))
        import cloudpickle

        try:
            return pickle.dumps(Source(None, cloudpickle.dumps(self._make)))
        except Exception as error:
            raise self._fault(
                f"cannot be made in another process, since make_env cannot be pickled ({type(error).__name__}: "
                f"{error}); expected a function that makes all it needs"
            ) from None

    def _ask(self, asked: Mapping[int, _Request]) -> dict[int, Any]:
        """The answers of workers to their requests."""
        for worker, request in asked.items():
            try:
                self._workers[worker].connection.send_bytes(pickle.dumps(request.command, 5))
            except OSError:  # it is gone, or does not listen
                raise self._gone(worker, request.contexts) from None
        return self._collect({w: request.contexts for w, request in asked.items()}, self._timeout)

    def _collect(self, contexts: Mapping[int, Sequence[bytes]], limit: float) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        pending = {self._workers[w].connection: w for w in contexts}
        calls, waited = dict.fromkeys(contexts, -1), dict.fromkeys(contexts, 0.0)
        slice_ = min(0.25, limit / 4)
        while pending:
            ready = wait(list(pending), slice_)
            for connection in ready:
                worker = pending.pop(connection)  # type: ignore[call-overload]
                try:
                    good, answer = pickle.loads(self._workers[worker].connection.recv_bytes())
                except (EOFError, OSError):
                    raise self._gone(worker, contexts[worker]) from None
                if not good:
                    before, after = answer
                    place = self._at(self._workers[worker].shared, contexts[worker])
                    raise self._fault(f"{before} {place}{after}")
                answers[worker] = answer
            if ready:
                continue
            for worker in pending.values():  # time is counted in slices: a machine that slept is no hang
                shared = self._workers[worker].shared
                waited[worker] = waited[worker] + slice_ if shared[CALLS] == calls[worker] else 0.0
                calls[worker] = shared[CALLS]
                if waited[worker] > limit:
                    raise self._hung(worker, contexts[worker], limit)
                if self._workers[worker].process.poll() is not None:
                    raise self._gone(worker, contexts[worker])
        return answers

    def _hung(self, worker: int, contexts: Sequence[bytes], limit: float) -> UserEnvError:
        """Ends a worker that does not return."""
        shared = self._workers[worker].shared
        _kill(self._workers[worker].process)
        advice = "" if shared[FUNCTION] == LOADING else " (the family's step_timeout)"
        return self._fault(f"did not return within {limit:g} s{advice} {self._at(shared, contexts)}")

    def _gone(self, worker: int, contexts: Sequence[bytes]) -> UserEnvError:
        """Why the connection to a worker has ended."""
        shared, process = self._workers[worker].shared, self._workers[worker].process
        try:
            status = process.wait(1.0)
        except subprocess.TimeoutExpired:
            ended = "it does not answer"
        else:
            if status < 0:
                ended = (signal.strsignal(-status) or f"signal {-status}").lower()
                ended += ", as when memory runs out" if status == -signal.SIGKILL else ""
            else:
                ended = f"exit code {status}"
        return self._fault(f"ended its process ({ended}) {self._at(shared, contexts)}")

    def _at(self, shared: memoryview, contexts: Sequence[bytes]) -> str:
        """Where a worker is, in words."""
        function, position = shared[FUNCTION], shared[POSITION]
        if function == WAITING:
            return "between two steps"
        if function == LOADING or position >= len(contexts):
            return "while its file was loaded"
        return f"in {FUNCTIONS[function]} in context {self._named(contexts[position])}"


class _Request(NamedTuple):
    command: tuple[Any, ...]
    contexts: Sequence[bytes]  # of its rows


class _Worker:
    """A process, the connection to it, and what it is at."""

    def __init__(self, source: bytes, origin: targets.Origin | None):
        require_posix("a GymFamily is simulated")
        ours, theirs = socket.socketpair()
        self._lifeline, their_lifeline = socket.socketpair()
        with theirs, their_lifeline, _shared_file() as file:
            self.shared = memoryview(mmap.mmap(file.fileno(), SHARED_BYTES)).cast("Q")
            self.shared[FUNCTION] = LOADING
            descriptors = [end.fileno() for end in (theirs, their_lifeline, file)]
            paths = [path for path in sys.path if isinstance(path, str)]
            program = (
                f"import sys; sys.path[:] = {paths!r}; from pdvf.families.env_process import main; main(*{descriptors})"
            )
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                cwd=origin.folder if origin is not None else None,
                # Environments that iterate over sets do the same in every process.
                env={"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0"} | os.environ,
                start_new_session=True,  # Ctrl-C is for the parent alone, and what environments start ends with them
            )
        limit = struct.pack("ll", int(LOAD_TIMEOUT), 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.connection = Connection(ours.detach())
        with contextlib.suppress(OSError):  # if it is dead already, that is noticed when it does not answer
            self.connection.send_bytes(source)

    def release(self) -> None:
        """Closes what the parent holds of a process that is gone."""
        self._lifeline.close()


def _shared_file() -> Any:
    """A file in memory: writing to one on a disk that is full would end the process."""
    linux = hasattr(os, "memfd_create")
    file = os.fdopen(os.memfd_create("pdvf"), "r+b") if linux else tempfile.TemporaryFile()  # noqa: SIM115
    file.truncate(SHARED_BYTES)
    return file


def _close(workers: list[_Worker], owner: int) -> None:
    """Ends workers: those that do not end by themselves within a second are killed."""
    if os.getpid() != owner:  # a fork of the process that has started them
        return
    for worker in workers:
        worker.connection.close()
    until = time.monotonic() + 1.0
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(max(0.0, until - time.monotonic()))
        _kill(worker.process)
        worker.release()
    workers.clear()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a worker and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may be unable to, for a while
        process.wait(5.0)
