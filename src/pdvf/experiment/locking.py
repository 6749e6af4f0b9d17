"""The lock of a run's folder: one process writes, and lets go of it however it ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import lock_descriptor

from pdvf.core.processes import is_alive, require_posix
from pdvf.experiment.errors import RunError
from pdvf.experiment.files import LOCK, writing

ENDING = 10.0
"""Seconds that the processes of a killed command are given to end."""


@contextlib.contextmanager
def locked(folder: Path, task: str = "") -> Iterator[int]:
    """Holds the folder's lock; the system lets go of it when the process ends, however it ends."""
    require_posix("a run's folder is written")
    path = folder / (f"{LOCK}-{task}" if task else LOCK)
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        with writing(path):
            _wait_for_lock(descriptor, folder, patient=bool(task))
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, folder: Path, patient: bool) -> None:
    """Takes the lock; processes of a command that was killed have a moment to end, any other writer is an error.

    With patience every writer has it: it may be on another machine, of which nothing is known.
    """
    deadline = time.monotonic() + ENDING
    while not lock_descriptor(descriptor, blocking=False):
        pid = os.pread(descriptor, 32, 0).decode(errors="replace")
        killed = pid.isdecimal() and not is_alive(int(pid))
        if (killed or patient) and time.monotonic() <= deadline:
            time.sleep(0.05)
            continue
        who = f"process {pid or 'unknown'} is"
        if killed:
            who = f"processes that process {pid}, which has ended, started are still"
        raise RunError(f"{who} writing to {folder}: wait until it ends, or use another --out")
