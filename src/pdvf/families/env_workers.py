"""The workers of a pool of environments (`env_pool.py`): processes here, or actors on a cluster (`env_actors.py`)."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from pdvf.core.processes import require_posix
from pdvf.families import loading as targets
from pdvf.families.env_process import CALLS, FUNCTION, LOADING, SHARED_BYTES

LOAD_TIMEOUT = 300.0
"""Seconds in which a worker must have imported the user's file, and in which it must take what it is sent."""
SIMULATORS, CLUSTER = "PDVF_SIMULATORS", "PDVF_RAY"
"""Variables with the number of actors that step environments, and the Ray cluster that they are in."""


class WorkerLost(Exception):  # noqa: N818
    """A worker is gone through no fault of an environment."""


class Fault(NamedTuple):
    """What an environment did wrong: the words before and after where it was, and that place as in shared memory."""

    before: str
    after: str
    at: tuple[int, ...]


class Worker(Protocol):
    """What holds environments: a process here (`ProcessWorker`), or one on another node (`env_actors`)."""

    def send(self, command: tuple[Any, ...], limit: float) -> None:
        """Hands it a command of `env_process.Slots`; a call of the user's code may take so many seconds."""
        ...

    def result(self) -> Any:
        """The answer, or a `Fault`; the first is None, once it has loaded what it needs."""
        ...

    def close(self) -> None:
        """Tells it to end, and does not wait."""
        ...

    def release(self, until: float) -> None:
        """Waits for its end until then (`time.monotonic`), and ends it and what it has started."""
        ...


def simulators() -> int:
    """How many actors of a Ray cluster environments are stepped by; 0 for processes here."""
    return int(os.environ.get(SIMULATORS, "0"))


def start_workers(source: bytes, origin: targets.Origin | None, count: int) -> Sequence[Worker]:
    """So many workers; fewer where there is no room for them."""
    if not simulators():
        return [ProcessWorker(source, origin) for _ in range(count)]
    from pdvf.families.env_actors import start

    return start(source, origin, count)


class ProcessWorker:
    """A process, the connection to it, and what it is at."""

    def __init__(self, source: bytes, origin: targets.Origin | None):
        require_posix("a GymFamily is simulated")
        ours, theirs = socket.socketpair()
        self._lifeline, their_lifeline = socket.socketpair()
        with theirs, their_lifeline, _shared_file() as file:
            self._shared = memoryview(mmap.mmap(file.fileno(), SHARED_BYTES)).cast("Q")
            self._shared[FUNCTION] = LOADING
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
        self._limit = LOAD_TIMEOUT
        limit = struct.pack("ll", int(LOAD_TIMEOUT), 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._connection = Connection(ours.detach())
        self._hand_over(source)

    def _hand_over(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # if it is dead already, that is noticed when it does not answer
            self._connection.send_bytes(data)

    def send(self, command: tuple[Any, ...], limit: float) -> None:
        """As `Worker`."""
        self._limit = limit
        self._hand_over(pickle.dumps(command, 5))

    def result(self) -> Any:
        """As `Worker`."""
        waited, calls, slice_ = 0.0, -1, min(0.25, self._limit / 4)
        try:
            while not self._connection.poll(slice_):  # time is counted in slices: a machine that slept is no hang
                waited = waited + slice_ if self._shared[CALLS] == calls else 0.0
                calls = self._shared[CALLS]
                if waited > self._limit:
                    advice = "" if self._shared[FUNCTION] == LOADING else " (the family's step_timeout)"
                    fault = Fault(f"did not return within {self._limit:g} s{advice}", "", tuple(self._shared))
                    self._kill()
                    return fault
                if self.process.poll() is not None:
                    raise EOFError
            good, answer = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            return Fault(f"ended its process ({self._ending()})", "", tuple(self._shared))
        if good:
            return answer
        before, after = answer
        return Fault(before, after, tuple(self._shared))

    def _ending(self) -> str:
        """How its process ended, in words."""
        try:
            status = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "it does not answer"
        if status >= 0:
            return f"exit code {status}"
        words = (signal.strsignal(-status) or f"signal {-status}").lower()
        return words + (", as when memory runs out" if status == -signal.SIGKILL else "")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may be unable to, for a while
            self.process.wait(5.0)

    def close(self) -> None:
        """As `Worker`."""
        self._connection.close()

    def release(self, until: float) -> None:
        """As `Worker`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, until - time.monotonic()))
        self._kill()
        self._lifeline.close()


def _shared_file() -> Any:
    """A file in memory: writing to one on a disk that is full would end the process."""
    linux = hasattr(os, "memfd_create")
    file = os.fdopen(os.memfd_create("pdvf"), "r+b") if linux else tempfile.TemporaryFile()  # noqa: SIM115
    file.truncate(SHARED_BYTES)
    return file
