"""What several commands do: make a plan in a run's folder, and run it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pdvf.config import Config
    from pdvf.experiment.plan import Task


class Command(Protocol):
    """A command: a frozen dataclass whose fields are its arguments and whose docstring is its help."""

    def main(self, said: str) -> int:
        """Does it and returns the exit status; `said` is the whole command line."""
        ...


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

    use_all_cores(recorded_cores(folder))
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
        store = RunStore.open(folder, family=family)
        config = from_dict(store.config)
    problem = Problem(config)
    if store is None:
        assert problem.engine  # made, or it has raised
        store = RunStore.create(folder, to_dict(config), said)
    if set(phases) - {REPORT} and (change := changed_since(folder)):
        print(f"pdvf: {folder} was begun elsewhere ({change}): what is made now has other bits", file=sys.stderr)
    return plan(store, problem, chosen, phases)


def execute(tasks: Sequence[Task], quiet: bool) -> int:
    """Runs a plan here; where it ends with a report, prints its table and path."""
    from pdvf.experiment.executors import EXECUTORS
    from pdvf.experiment.plan import REPORT
    from pdvf.experiment.progress import make_progress

    EXECUTORS["serial"](tasks, make_progress(quiet, [(task.store.folder.name, task.name) for task in tasks]))
    for task in tasks:
        if task.name == REPORT:
            from pdvf.experiment.cost import environment_steps
            from pdvf.reports import adaptation
            from pdvf.reports.data import read_returns
            from pdvf.reports.tables import terminal

            print(terminal(read_returns(task.store), environment_steps(task.store)))
            for found in adaptation.read(task.store):
                print(found.sentence())
            print(f"report: {task.store.folder / 'report.html'}")
    return 0
