"""What several commands do: make a plan in a run's folder, and run it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import tyro

from pdvf.core.validation import ConfigError

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
    """What runs the tasks of a plan."""

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
        if self.simulators < 0:
            raise ConfigError(f"--simulators is {self.simulators}, expected at least 0")
        if self.simulators and self.executor != "ray":
            raise ConfigError(f"--simulators with --executor {self.executor}, expected --executor ray")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers is {self.workers}, expected at least 1")
        if self.address and self.executor != "ray":
            raise ConfigError(f"--address is {self.address} with --executor {self.executor}, expected --executor ray")
        if self.side_by_side:
            # For this process and those it starts: else the first on a GPU takes three quarters of its memory.
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    @property
    def side_by_side(self) -> bool:
        """Whether there can be several tasks at a time, each in a process of its own."""
        return self.executor != "serial" or (self.workers or 1) > 1

    def run(
        self, tasks: Sequence[Task], on_event: Listener, quiet: bool, tick: Callable[[], None] = lambda: None
    ) -> list[Task]:
        """Makes tasks and returns those that are not done."""
        from pdvf.experiment.executors import EXECUTORS, ray

        if self.executor == "ray":
            return ray.run(tasks, on_event, self.workers or 0, quiet, tick, self.address, self.simulators)
        name = "processes" if self.side_by_side else "serial"
        return EXECUTORS[name](tasks, on_event, self.workers or 1, quiet, tick)


SERIAL = Execution()
Executed = Annotated[Execution, tyro.conf.arg(name="")]
"""The type of a command's field of that kind, whose arguments are the command's own."""


def make_plan(
    folder: Path,
    config: Config | None,
    said: str,
    phases: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    family: str | None = None,
) -> list[Task]:
    """What there is to do in a run folder, made anew when a configuration is given.

    No phases: those that the methods rest on, with table and report; everything where no methods are named.
    What may be refused comes before the folder is made: family, engine and methods.
    """
    from pdvf.core.devices import use_all_cores
    from pdvf.experiment.provenance import changed_since, recorded_cores
    from pdvf.experiment.remote import local_at, remote_at

    remote = remote_at(folder)
    place, here = (folder if remote is None else remote.url), local_at(folder)
    if remote is not None:
        remote.pull(here, lambda artefact: False)
    use_all_cores(recorded_cores(here))
    from pdvf.config import from_dict, to_dict
    from pdvf.experiment.comparison import find_methods
    from pdvf.experiment.plan import EVERYTHING, REPORT, TABLE, phases_for, plan
    from pdvf.experiment.store import RunStore
    from pdvf.paper.pipeline import Problem

    chosen = [] if methods is None else find_methods(methods)
    if phases is None:
        phases = (*phases_for(chosen), TABLE, REPORT) if methods else EVERYTHING
    store = None
    if config is None:
        store = RunStore.open(place, family=family)
        config = from_dict(store.config)
    problem = Problem(config)
    if store is None:
        assert problem.engine  # made, or it has raised
        store = RunStore.create(place, to_dict(config), said)
    if set(phases) - {REPORT} and (change := changed_since(here)):
        print(f"pdvf: {folder} was begun elsewhere ({change}): what is made now has other bits", file=sys.stderr)
    return plan(store, problem, chosen, phases)


def execute(tasks: Sequence[Task], quiet: bool, execution: Execution = SERIAL) -> int:
    """Runs a plan; where it ends with a report, prints its table and path."""
    from pdvf.experiment.errors import RunError
    from pdvf.experiment.plan import REPORT
    from pdvf.experiment.progress import make_progress

    progress = make_progress(quiet, [(task.store.folder.name, task.name) for task in tasks])
    failures: list[str] = []

    def on_event(event: Event) -> None:
        progress(event)
        if event.kind == "fail":
            failures.append(f"{event.task}: {event.error}")

    if undone := execution.run(tasks, on_event, quiet):
        raise RunError(
            f"{len(undone)} of {len(tasks)} tasks are not done; {'; '.join(failures)}. The same command tries again "
            "(with fewer --workers, if memory was short)"
        )
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
