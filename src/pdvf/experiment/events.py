"""How far a run is, as a stream of events: RUN/events.jsonl, one JSON object a line.

Whoever makes a task appends to the file; whoever wants to show it, in this process or in another, is a listener: a
function of one `Event`. A kill may cut the last line, and readers skip what is no event.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pdvf.experiment.errors import RunError
from pdvf.experiment.files import finite_json, require_fields, writing

EVENTS = "events.jsonl"
KINDS = ("start", "stage", "finish", "fail")
PIECE = 2**24
"""Bytes that are read at once: the file may be a stranger's. No event has so many."""


class Event(NamedTuple):
    """Something that happened to a task."""

    time: float
    """Seconds since 1970."""
    run: str
    """Name of the run's folder."""
    task: str
    kind: str
    """start: it begins, or goes on after `stage` stages; stage: one more is done and saved; finish: its artefacts are
    saved; fail."""
    stage: int = 0
    """Stages done."""
    stages: int = 0
    """Stages in all; 0 for a task that leaves no artefact."""
    seconds: float = 0.0
    """Time spent on the task, before any resume too."""
    metrics: Mapping[str, Any] = {}
    """Numbers of the stage by name; None where one is not finite."""
    error: str = ""
    """Why it failed."""


Listener = Callable[[Event], None]


def tell_all(listeners: Iterable[Listener]) -> Listener:
    """One listener that tells them all, in their order."""
    listeners = tuple(listeners)

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return tell


FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("run", "task", "kind", "error"), (str,)),
    **dict.fromkeys(("stage", "stages"), (int,)),
    **dict.fromkeys(("time", "seconds"), (int, float)),
    "metrics": (dict,),
}


def write_event(folder: Path, event: Event) -> None:
    """Appends a line to the run's file, in one go: several processes may write."""
    path, line = folder / EVENTS, finite_json(event._asdict()) + "\n"
    with writing(path):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            size = os.fstat(file).st_size
            whole = size == 0 or os.pread(file, 1, size - 1) == b"\n"
            os.write(file, (line if whole else "\n" + line).encode())
        finally:
            os.close(file)


def fail_event(run: Path, task: str, error: str, seconds: float = 0.0) -> Event:
    """A task ended without what it should leave."""
    return Event(time.time(), run.name, task, "fail", seconds=seconds, error=error)


class Follower:
    """The events that are appended to a run's file from now on, or with `whole` all of them."""

    def __init__(self, folder: Path, whole: bool = False) -> None:
        self._path = folder / EVENTS
        self._read = 0 if whole or not self._path.is_file() else self._path.stat().st_size

    def new(self) -> Iterator[Event]:
        """Those since the last call, or as many as a piece of the file has."""
        if not self._path.is_file():
            return
        with open(self._path, "rb") as file:
            file.seek(self._read)
            piece = file.read(PIECE)
        *lines, last = piece.split(b"\n")  # the last may be still being written
        self._read += len(piece) if len(last) == PIECE else len(piece) - len(last)
        for line in lines:
            yield from parse_event(line, self._path)


def parse_event(line: bytes, path: Path) -> Iterator[Event]:
    """The event in a line of a file, if it is one."""
    try:
        data = json.loads(line)
        require_fields(data if isinstance(data, dict) else {}, FIELDS, path, "")
        yield Event(**{name: data[name] for name in Event._fields})
    except (ValueError, RecursionError, RunError):
        return
