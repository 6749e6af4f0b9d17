"""The workers of a pool of environments (`env_pool.py`): processes here, or actors on a cluster (`env_actors.py`)."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from pdvf.core.processes import require_posix
from pdvf.families import loading as targets
from pdvf.families.env_process import FUNCTION, LOADING, SHARED_BYTES

LOAD_TIMEOUT = 300.0
"""Seconds in which a worker must have imported the user's file."""
NO_ANSWER = "it does not answer"
"""What is said of a worker whose process does not end either."""
SIMULATORS, CLUSTER = "PDVF_SIMULATORS", "PDVF_RAY"
"""Variables with the number of actors that step environments, and the Ray cluster that they are in."""


class WorkerLost(Exception):  # noqa: N818
    """A worker is gone through no fault of an environment."""


class Worker(Protocol):
    """What holds environments: a process here (`ProcessWorker`), or one on another node (`env_actors`)."""

    def send(self, data: bytes) -> None:
        """Hands it a request; raises OSError where it is gone."""
        ...

    def ready(self, workers: Sequence[Any], seconds: float) -> list[int]:
        """Places of those among workers of this kind that have an answer, waited for no longer than so."""
        ...

    def receive(self) -> bytes:
        """The answer; raises EOFError or OSError where the environment has ended its process."""
        ...

    def at(self) -> Sequence[int]:
        """What it is at, as in the memory that it shares (`env_process`)."""
        ...

    def ending(self, seconds: float) -> str | None:
        """How its process ended, in words; None if it has not, after waiting so long."""
        ...

    def kill(self) -> None:
        """Ends it and what it has started."""
        ...

    def close(self) -> None:
        """Tells it to end, and does not wait."""
        ...

    def release(self) -> None:
        """Waits a moment for its end, then kills it."""
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

    def send(self, data: bytes) -> None:
        """As `Worker`."""
        self.connection.send_bytes(data)

    def ready(self, workers: Sequence[ProcessWorker], seconds: float) -> list[int]:
        """As `Worker`."""
        connections = [worker.connection for worker in workers]
        return [connections.index(found) for found in wait(connections, seconds)]  # type: ignore[arg-type]

    def receive(self) -> bytes:
        """As `Worker`."""
        return self.connection.recv_bytes()

    def at(self) -> Sequence[int]:
        """As `Worker`."""
        return self.shared

    def ending(self, seconds: float) -> str | None:
        """As `Worker`."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        if status >= 0:
            return f"exit code {status}"
        words = (signal.strsignal(-status) or f"signal {-status}").lower()
        return words + (", as when memory runs out" if status == -signal.SIGKILL else "")

    def kill(self) -> None:
        """As `Worker`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may be unable to, for a while
            self.process.wait(5.0)

    def close(self) -> None:
        """As `Worker`."""
        self.connection.close()
        self._until = time.monotonic() + 1.0

    def release(self) -> None:
        """As `Worker`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, self._until - time.monotonic()))
        self.kill()
        self._lifeline.close()


def _shared_file() -> Any:
    """A file in memory: writing to one on a disk that is full would end the process."""
    linux = hasattr(os, "memfd_create")
    file = os.fdopen(os.memfd_create("pdvf"), "r+b") if linux else tempfile.TemporaryFile()  # noqa: SIM115
    file.truncate(SHARED_BYTES)
    return file
