"""One task after the other, in this process; the first that fails ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Listener, fail_event, write_event
from pdvf.experiment.plan import Task, locks
from pdvf.families.env_pool import fault_of


def run(
    tasks: Sequence[Task],
    on_event: Listener,
    workers: int = 1,
    quiet: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> list[Task]:
    """As `Executor`."""
    with locks(tasks):
        for task in tasks:
            tick()
            try:
                task.run(on_event)
            except Exception as error:
                why = str(fault_of(error) or f"{type(error).__name__}: {error}")
                event = fail_event(task.store.folder, task.name, why)
                with suppress(RunError):  # the same disk may be full
                    write_event(task.store.folder, event)
                on_event(event)
                raise
        tick()
    return []
