"""How far a run is: shown on a terminal, as plain lines, or not at all."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from typing import Any, Protocol, TextIO


class Progress(Protocol):
    """Is told how a phase goes. Stages done and seconds count from the phase's start, before any resume."""

    def start(self, phase: str, stages: int, done: int) -> None:
        """A phase begins, or goes on after `done` of its stages."""
        ...

    def update(self, phase: str, done: int, stages: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """One more stage is done."""
        ...

    def finish(self, phase: str, seconds: float) -> None:
        """The phase is done and its artefacts are saved."""
        ...


class Quiet:
    """Shows nothing."""

    def start(self, phase: str, stages: int, done: int) -> None:
        """Nothing."""

    def update(self, phase: str, done: int, stages: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def finish(self, phase: str, seconds: float) -> None:
        """Nothing."""


class Plain:
    """One line for each stage, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def start(self, phase: str, stages: int, done: int) -> None:
        """Says where the phase begins."""
        self._print(f"{phase}: goes on after stage {done} of {stages}" if done else f"{phase}: begins")

    def update(self, phase: str, done: int, stages: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """Says how far, how fast and how long still."""
        left = duration(time_left(done, stages, seconds))
        self._print(f"{phase}: stage {done} of {stages}, {rate(done, seconds, metrics)}, {left} left")

    def finish(self, phase: str, seconds: float) -> None:
        """Says how long the phase took."""
        self._print(f"{phase}: done in {duration(seconds)}")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Live:
    """A bar on a terminal."""

    def __init__(self, console: Any = None) -> None:
        self._console = console
        self._bars: Any = None
        self._task: Any = None

    def start(self, phase: str, stages: int, done: int) -> None:
        """Shows the bar."""
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
        self._task = self._bars.add_task(phase, total=stages, completed=done, text="")
        self._bars.start()
        atexit.register(self._stop)  # an error in the phase must not leave the terminal without its cursor

    def update(self, phase: str, done: int, stages: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """Moves the bar on."""
        text = f"{rate(done, seconds, metrics)}, {duration(time_left(done, stages, seconds))} left"
        self._bars.update(self._task, completed=done, total=stages, text=text)

    def finish(self, phase: str, seconds: float) -> None:
        """Leaves the full bar with the time it took."""
        self._bars.update(self._task, text=f"done in {duration(seconds)}")
        self._stop()

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
            atexit.unregister(self._stop)


def make_progress(quiet: bool) -> Progress:
    """What suits the standard error stream: a live bar on a terminal, plain lines elsewhere."""
    if quiet:
        return Quiet()
    return Live() if sys.stderr.isatty() else Plain(sys.stderr)


def rate(done: int, seconds: float, metrics: Mapping[str, float]) -> str:
    """How fast: environment steps where the phase counts them, else stages."""
    if "steps_per_second" in metrics:
        return f"{metrics['steps_per_second']:,.0f} steps/s"
    return f"{done / max(seconds, 1e-9):.3g} stages/s"


def time_left(done: int, stages: int, seconds: float) -> float:
    """Seconds until the last stage is done, at the mean pace so far."""
    return seconds / max(done, 1) * (stages - done)


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
