"""What runs a plan. An executor is one file with a function like `Executor`, and its line in `EXECUTORS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pdvf.experiment.events import Listener
from pdvf.experiment.executors import processes, ray, serial
from pdvf.experiment.plan import Task


class Executor(Protocol):
    """Makes tasks, each of which writes its events to its run's folder."""

    def __call__(
        self,
        tasks: Sequence[Task],
        on_event: Listener,
        workers: int = 1,
        quiet: bool = False,
        tick: Callable[[], None] = lambda: None,
    ) -> list[Task]:
        """Makes tasks in the order of their needs, and returns those that are not done.

        Args:
            tasks: a plan, or several.
            on_event: hears of every event, in this process.
            workers: how many tasks at a time, where there can be several.
            quiet: whether other processes show no progress.
            tick: is called now and then.
        """
        ...


EXECUTORS: dict[str, Executor] = {"serial": serial.run, "processes": processes.run, "ray": ray.run}
