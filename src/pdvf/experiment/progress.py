"""How far a run is, for people: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from pdvf.experiment.events import Event, Listener

SHARES = {"train": 10.0, "collect": 1.0, "embed": 4.0, "fit": 6.0, "bound": 3.0}
"""Roughly how the time of a run divides among its phases."""
METHOD, RETURNS = 4.0, 0.5
"""The same for the training of any other method, and for the episodes that are played with one."""


class Clock:
    """Time left of a plan: what its tasks have taken so far, scaled by what is usual for those that are left.

    `tasks` are pairs of run and task, in order; a task that is not among them is a plan of its own.
    """

    def __init__(self, tasks: Sequence[tuple[str, str]] = ()) -> None:
        self._tasks = list(tasks)
        self._taken: dict[tuple[str, str], float] = {}

    def left(self, event: Event) -> float:
        """Seconds after this event."""
        now = event.run, event.task
        plan = self._tasks if now in self._tasks else [now]
        part = event.stage / max(event.stages, 1)
        self._taken[now] = event.seconds
        earlier = [task for task in plan[: plan.index(now)] if task in self._taken]
        done = sum(share(task) for _, task in earlier) + share(event.task) * part
        spent = sum(self._taken[task] for task in (*earlier, now))
        waiting = sum(share(task) for _, task in plan[plan.index(now) + 1 :]) + share(event.task) * (1 - part)
        return spent / done * waiting if done else 0.0


def share(task: str) -> float:
    """What a task usually takes of the time, in units that all tasks share; nothing for files that are written."""
    if task in ("returns", "report"):
        return 0.0
    return RETURNS if task.startswith("returns-") or task == "evaluate" else SHARES.get(task, METHOD)


class Lines:
    """One line for each stage, for logs."""

    def __init__(self, stream: TextIO, clock: Clock | None = None) -> None:
        self._stream, self._clock = stream, clock or Clock()

    def __call__(self, event: Event) -> None:
        """Says where a task begins, how far it is and how long it took."""
        if event.stages and event.kind != "fail":
            self._stream.write(f"{words(event, self._clock)}\n")  # in one piece: Ctrl-C may end the process between two
            self._stream.flush()


class Live:
    """A bar on a terminal."""

    def __init__(self, console: Any = None, clock: Clock | None = None) -> None:
        self._console, self._clock = console, clock or Clock()
        self._bars: Any = None
        self._task: Any = None

    def __call__(self, event: Event) -> None:
        """Shows the bar, moves it on, and leaves it full with the time it took."""
        if event.kind == "start" and event.stages:
            self._start(event)
        elif self._bars is not None and event.kind == "stage":
            self._bars.update(self._task, completed=event.stage, text=pace(event, self._clock))
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
        self._task = self._bars.add_task(event.task, total=event.stages, completed=event.stage, text="compiling")
        self._bars.start()
        atexit.register(self._stop)  # an error in the task must not leave the terminal without its cursor

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
            atexit.unregister(self._stop)


SHOWN = ("train_return", "optimal_return", "mean_return", "held_out_loss", "decoder_loss", "loss")
"""Metrics of a stage, of which the first that there is is shown."""


def ignore(event: Event) -> None:
    """Shows nothing."""


def make_progress(quiet: bool, tasks: Sequence[tuple[str, str]] = ()) -> Listener:
    """What suits the standard error stream, a bar or plain lines; `tasks` of the plan are as for `Clock`."""
    if quiet:
        return ignore
    clock = Clock(tasks)
    return Live(clock=clock) if sys.stderr.isatty() else Lines(sys.stderr, clock)


def words(event: Event, clock: Clock | None = None) -> str:
    """An event in one line."""
    began = f"goes on after stage {event.stage} of {event.stages}" if event.stage else "begins"
    lines = {
        "start": began,
        "stage": f"stage {event.stage} of {event.stages}, {pace(event, clock or Clock())}",
        "finish": f"done in {duration(event.seconds)}",
        "fail": f"failed after {duration(event.seconds)}; {event.error}",
    }
    return f"{event.task}: {lines[event.kind]}"


def pace(event: Event, clock: Clock) -> str:
    """Return or loss, how fast (in environment steps where the task counts them, else in stages), and time left."""
    steps = event.metrics.get("steps_per_second")
    rate = f"{steps:,.0f} steps/s" if steps else f"{event.stage / max(event.seconds, 1e-9):.3g} stages/s"
    shown = next((name for name in SHOWN if isinstance(event.metrics.get(name), int | float)), None)
    value = f"{shown.replace('_', ' ')} {event.metrics[shown]:.4g}, " if shown else ""
    return f"{value}{rate}, {duration(clock.left(event))} left"


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
