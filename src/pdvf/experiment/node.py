"""What a machine does for a task that is made on it: starts its process, keeps its log, says how it ended.

Ray sends this file to its nodes as code (`executors.ray`), whatever is installed there. So it imports Python's library
alone.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

TROUBLE = (75, 120)
"""Exit statuses of a node's own trouble: a disk that is full or fails, and Python's where it could not write its last
words. Another try may go well elsewhere."""


def package_version(package: str) -> str | None:
    """What is installed here; None for nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def open_log(log: str | os.PathLike[str]) -> BinaryIO:
    """The log of a task, to be written to at its end; not through a symbolic link."""
    os.makedirs(os.path.dirname(log), exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    return os.fdopen(os.open(log, flags, 0o666), "ab")


def last_line(log: str | os.PathLike[str]) -> str:
    """What a process said last."""
    with open(log, errors="replace") as file:
        lines = file.read().strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def spawn(
    words: Sequence[str], log: BinaryIO, env: Mapping[str, str], cwd: str | None = None, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Starts Python with these words; it writes to the log, which is closed here, and notices when we are gone."""
    with log:
        return subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, cwd=cwd, pass_fds=pass_fds
        )


class Mailbox:
    """An actor that takes lines of events from the nodes until they are fetched."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, bytes]] = []

    def put(self, folder: str, lines: list[bytes]) -> None:
        """Takes lines of a run."""
        self._lines += [(folder, line) for line in lines]

    def take(self) -> list[tuple[str, bytes]]:
        """Hands over those that have come since the last call."""
        lines, self._lines = self._lines, []
        return lines


def supervise(
    command: Sequence[str], folder: str, given: dict[str, str], versions: Mapping[str, str | None], mailbox: Any
) -> tuple[int, str]:
    """Makes a task on this node: its exit status, and what it said last."""
    node, run, name = platform.node(), command[2], command[4]
    for package, expected in versions.items():
        if (found := package_version(package)) != expected:
            return 2, f"node {node} has {package} {found}, expected {expected} as where the command was given"
    own = None if mailbox is None else tempfile.mkdtemp(prefix="pdvf-")
    here = run if own is None else os.path.join(own, os.path.basename(run))
    if own is None and not os.path.isdir(run):
        return 2, f"node {node} does not see {run}, expected a folder that all nodes share, or an address (s3://...)"
    sent = 0

    def tell() -> None:
        """Sends the events since the last call."""
        nonlocal sent
        path = os.path.join(here, "events.jsonl")
        if mailbox is None or not os.path.isfile(path):
            return
        with open(path, "rb") as file:
            file.seek(sent)
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        if lines:
            sent += sum(map(len, lines))
            mailbox.put.remote(run, lines)

    try:
        log = os.path.join(here, "logs", f"{name}.log")
        words = [*command[:2], here, *command[3:]]
        process = spawn(words, open_log(log), os.environ | given, cwd=folder if os.path.isdir(folder) else None)
        status = None
        try:
            while status is None:
                try:
                    status = process.wait(0.2)
                except subprocess.TimeoutExpired:
                    tell()
        finally:  # also when the task is cancelled
            process.kill()
            process.communicate()
        tell()
        said = f"{last_line(log)} (node {node}; all of it: {log})"
    finally:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
    if status < 0 or status in TROUBLE:  # below 0: killed
        raise RuntimeError(f"status {status}: {said}")
    return status, said
