"""What several commands do: make a plan in a run's folder, and run it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import tyro

from pdvf.core.processes import exit_on_interrupt
from pdvf.core.validation import ConfigError, require

if TYPE_CHECKING:
    from pdvf.config import Config
    from pdvf.experiment.events import Event, Listener
    from pdvf.experiment.plan import Task


class Command(Protocol):
    """A command: a frozen dataclass whose fields are its arguments and whose docstring is its help."""

    def main(self, said: str) -> int:
        """Does it and returns the exit status; `said` is the whole command line."""
        ...


@dataclass(frozen=True)
class Execution:
    """What runs the tasks of a plan, and what it shows."""

    quiet: bool = False
    """Show no progress."""
    executor: Literal["serial", "processes", "ray"] = "serial"
    """serial: one task after the other, in this process; processes: each in a process of its own; ray: each on a node
    of a Ray cluster (docs/distributed.md). More than one of --workers makes serial processes."""
    workers: int | None = None
    """Tasks made at the same time: one of them leaves most of a GPU idle. With NVIDIA's MPS running
    (`nvidia-cuda-mps-control -d`) they truly share it. None for one, and with ray for one a CPU of the cluster."""
    address: str = ""
    """With ray: HOST:PORT of a cluster's head, or auto for the cluster of this machine; without it Ray starts here."""
    simulators: int = 0
    """With ray: step the environments of a Gymnasium family in so many actors on any nodes; 0 for processes on the
    task's own node. For simulators of 100 steps a second and less."""

    def __post_init__(self) -> None:
        require(self.simulators >= 0, "--simulators", self.simulators, "at least 0")
        if self.simulators and self.executor != "ray":
            raise ConfigError(f"--simulators with --executor {self.executor}, expected --executor ray")
        require(self.workers is None or self.workers >= 1, "--workers", self.workers, "at least 1")
        if self.address and self.executor != "ray":
            raise ConfigError(f"--address is {self.address} with --executor {self.executor}, expected --executor ray")
        if self.side_by_side:
            # For this process and those it starts: else the first on a GPU takes three quarters of its memory.
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    @property
    def side_by_side(self) -> bool:
        """Whether there can be several tasks at a time, each in a process of its own."""
        return self.executor != "serial" or (self.workers or 1) > 1

    def run(self, tasks: Sequence[Task], on_event: Listener, tick: Callable[[], None] = lambda: None) -> None:
        """Makes tasks; raises unless all of them are done."""
        from pdvf.experiment.errors import RunError
        from pdvf.experiment.executors import EXECUTORS, ray

        failures: list[str] = []

        def hear(event: Event) -> None:
            on_event(event)
            if event.kind == "fail":
                failures.append(f"{event.task}: {event.error}")

        if self.executor == "ray":
            undone = ray.run(tasks, hear, self.workers or 0, self.quiet, tick, self.address, self.simulators)
        else:
            name = "processes" if self.side_by_side else "serial"
            undone = EXECUTORS[name](tasks, hear, self.workers or 1, self.quiet, tick)
        if undone:
            raise RunError(
                f"{len(undone)} of {len(tasks)} tasks are not done; {'; '.join(failures)}. The same command tries "
                "again (with fewer --workers, if memory was short)"
            )


SERIAL = Execution()
Executed = Annotated[Execution, tyro.conf.arg(name="")]
"""The type of a command's field of that kind, whose arguments are the command's own."""


def wait_at(page: str, url: str) -> int:
    """Says where a page is, which is there until Ctrl-C."""
    exit_on_interrupt("pdvf: the page is closed")
    print(f"{page}: {url}  (Ctrl-C ends it)", flush=True)
    threading.Event().wait()
    return 0


def make_plan(
    folder: Path,
    config: Config | None,
    said: str,
    phases: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    family: str | None = None,
) -> list[Task]:
    """What there is to do in a run folder, made anew when a configuration is given.

    No phases: those that the methods rest on, with table and report; everything where the methods are all there are.
    What may be refused comes before the folder is made: family, engine and methods.
    """
    from pdvf.experiment.provenance import changed_since, use_recorded_cores

    here = use_recorded_cores(folder)
    from pdvf.config import from_dict, to_dict
    from pdvf.experiment.comparison import find_methods
    from pdvf.experiment.plan import EVERYTHING, REPORT, TABLE, phases_for, plan
    from pdvf.experiment.store import RunStore
    from pdvf.paper.pipeline import Problem

    chosen = [] if methods is None else find_methods(methods)
    if phases is None:
        phases = (*phases_for(chosen), TABLE, REPORT) if methods else EVERYTHING
    if config is None:
        store = RunStore.open(folder, family=family)
        problem = Problem(from_dict(store.config))
    else:
        problem = Problem(config)
        _ = problem.engine  # is made, or raises
        store = RunStore.create(folder, to_dict(config), said)
    if set(phases) - {REPORT} and (change := changed_since(here)):
        print(f"pdvf: {folder} was begun elsewhere ({change}): what is made now has other bits", file=sys.stderr)
    return plan(store, problem, chosen, phases)


def execute(tasks: Sequence[Task], execution: Execution, on_event: Listener | None = None) -> int:
    """Runs a plan, with the usual progress for no listener; where it ends with a report, prints its table and path."""
    from pdvf.experiment.plan import REPORT
    from pdvf.experiment.progress import make_progress

    planned = [(task.store.folder.name, task.name) for task in tasks]
    execution.run(tasks, on_event or make_progress(execution.quiet, planned))
    for task in tasks:
        if task.name == REPORT:
            from pdvf.experiment.cost import environment_steps
            from pdvf.reports.data import read_run
            from pdvf.reports.page import adapts, verdict
            from pdvf.reports.tables import terminal

            run = read_run(task.store, environment_steps(task.store))
            print(terminal(run.groups, run.steps))
            print(f"{adapts(run)} {verdict(run)}".lstrip())
            for found in run.adaptation:
                print(found.sentence())
            print(f"report: {task.store.folder / 'report.html'}")
            if task.store.remote is not None:
                print(f"published: {task.store.remote.url}")
    return 0
