"""An executor in one file: tasks whose needs are there run side by side, in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pdvf.experiment.events import Listener
from pdvf.experiment.plan import Task, locks


def run(
    tasks: Sequence[Task],
    on_event: Listener,
    workers: int = 1,
    quiet: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> list[Task]:
    """As `Executor`."""
    del quiet
    waiting = list(tasks)
    with locks(tasks), ThreadPoolExecutor(workers) as pool:
        while ready := [task for task in waiting if task.ready]:
            list(pool.map(lambda task: task.run(on_event), ready))
            waiting = [task for task in waiting if task not in ready]
            tick()
    return waiting
