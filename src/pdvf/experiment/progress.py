"""How far a run is, for people: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import atexit
import sys
from typing import Any, TextIO

from pdvf.experiment.events import Event, Listener


class Plain:
    """One line for each stage, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: Event) -> None:
        """Says where a task begins, how far it is and how long it took."""
        if event.stages and event.kind != "fail":
            self._stream.write(f"{words(event)}\n")  # in one piece: Ctrl-C may end the process between two
            self._stream.flush()


class Live:
    """A bar on a terminal."""

    def __init__(self, console: Any = None) -> None:
        self._console = console
        self._bars: Any = None
        self._task: Any = None

    def __call__(self, event: Event) -> None:
        """Shows the bar, moves it on, and leaves it full with the time it took."""
        if event.kind == "start" and event.stages:
            self._start(event)
        elif self._bars is not None and event.kind == "stage":
            self._bars.update(self._task, completed=event.stage, text=pace(event))
        elif self._bars is not None:
            if event.kind == "finish":
                self._bars.update(self._task, text=f"done in {duration(event.seconds)}")
            self._stop()

    def _start(self, event: Event) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._stop()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            console=self._console or Console(stderr=True),
        )
        self._task = self._bars.add_task(event.task, total=event.stages, completed=event.stage, text="")
        self._bars.start()
        atexit.register(self._stop)  # an error in the task must not leave the terminal without its cursor

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
            atexit.unregister(self._stop)


def ignore(event: Event) -> None:
    """Shows nothing."""
    del event


def make_progress(quiet: bool) -> Listener:
    """What suits the standard error stream: a live bar on a terminal, plain lines elsewhere."""
    if quiet:
        return ignore
    return Live() if sys.stderr.isatty() else Plain(sys.stderr)


def words(event: Event) -> str:
    """An event in one line."""
    began = f"goes on after stage {event.stage} of {event.stages}" if event.stage else "begins"
    lines = {
        "start": began,
        "stage": f"stage {event.stage} of {event.stages}, {pace(event)}",
        "finish": f"done in {duration(event.seconds)}",
        "fail": f"failed after {duration(event.seconds)}; {event.error}",
    }
    return f"{event.task}: {lines[event.kind]}"


def pace(event: Event) -> str:
    """How fast, in environment steps where the task counts them, else in stages, and how long still."""
    steps = event.metrics.get("steps_per_second")
    rate = f"{steps:,.0f} steps/s" if steps else f"{event.stage / max(event.seconds, 1e-9):.3g} stages/s"
    left = event.seconds / max(event.stage, 1) * (event.stages - event.stage)  # at the mean pace so far
    return f"{rate}, {duration(left)} left"


def duration(seconds: float) -> str:
    """Seconds in words: 0.4 s, 12 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"
