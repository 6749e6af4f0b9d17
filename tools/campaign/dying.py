"""Runs `pdvf` so that it dies at one of its file operations: `python dying.py WHERE N pdvf-arguments...`

WHERE is an operation of the run store: `replace`, `fsync` or `unlink` (the N-th call is not made, the process is killed
instead), or `write` (the N-th file that is being written gets half of its bytes). N counts from 1. With `full` the
N-th file gets half of its bytes and the disk is full from then on.
"""

from __future__ import annotations

import builtins
import errno
import itertools
import os
import signal
import sys
from typing import Any, NoReturn

from pdvf.experiment import files

FULL = "full"
OPERATIONS = ("replace", "fsync", "unlink", "write")


def die() -> NoReturn:
    """As if somebody else had killed this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit  # not reached


class Half:
    """A file that takes half of what is written to it."""

    def __init__(self, file: Any, then: Any) -> None:
        self._file, self._then = file, then

    def __enter__(self) -> Half:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        """Writes half, then comes the end."""
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        self._then()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def no_space() -> NoReturn:
    """As if the disk were full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def prepare(where: str, n: int) -> None:
    """Sets the trap."""
    count = itertools.count(1)
    if where in ("write", FULL):

        def opened(path: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            file = builtins.open(path, mode, *rest, **named)  # noqa: SIM115
            if "w" not in mode and "x" not in mode:
                return file
            number = next(count)
            if where == "write":
                return Half(file, die) if number == n else file
            return Half(file, no_space) if number >= n else file

        files.open = opened  # type: ignore[attr-defined]
        return
    call = getattr(os, where)

    def trapped(*given: Any, **named: Any) -> Any:
        if next(count) == n:
            die()
        return call(*given, **named)

    setattr(os, where, trapped)


if __name__ == "__main__":
    where, n, *words = sys.argv[1:]
    prepare(where, int(n))
    sys.argv = ["pdvf", *words]
    from pdvf.__main__ import entry

    entry()
