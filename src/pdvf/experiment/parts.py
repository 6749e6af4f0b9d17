"""One part of a run: a phase, a method or the report, made here or by a process of its own.

`python -m pdvf.experiment.parts RUN FAMILY NAME` is what `workers` starts; whoever starts it holds the run's lock and
the other end of its standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pdvf.config import ConfigError, from_dict
from pdvf.core.devices import use_all_cores
from pdvf.core.processes import exit_on_interrupt, exit_with_parent
from pdvf.experiment import comparison
from pdvf.experiment.errors import RunError
from pdvf.experiment.progress import Progress, make_progress
from pdvf.experiment.provenance import recorded_cores
from pdvf.experiment.stages import finished, run_phase
from pdvf.experiment.store import RunStore
from pdvf.paper import pipeline
from pdvf.paper.pipeline import PHASES, Problem

REPORT = "report"


def make_part(store: RunStore, problem: Problem, name: str, progress: Progress) -> None:
    """Makes what is missing of a part, whose needs are there."""
    if name in PHASES:
        make_phase(store, problem, name, progress)
    elif name == REPORT:
        from pdvf.reports import write_report  # slow to import

        comparison.write_returns(store, problem)
        write_report(store)
    else:
        comparison.compare(store, problem, comparison.find_methods((name,)), progress)


def make_phase(store: RunStore, problem: Problem, name: str, progress: Progress) -> None:
    """Makes the artefacts of a phase, unless they are there."""
    spec = PHASES[name]
    if not finished(store, name, spec.leaves):
        for needed in spec.needs:
            if not store.has(needed):
                maker = next(phase for phase, s in PHASES.items() if needed in s.leaves)
                raise RunError(
                    f"{store.folder} has no artefact {needed!r}, which `pdvf {name}` needs: "
                    f"run `pdvf {maker} {store.folder}` first"
                )
        shapes = pipeline.artefact_shapes(problem)
        inputs = [store.load(needed, shapes[needed]) for needed in spec.needs]
        run_phase(store, spec.make(problem, *inputs), spec.leaves, spec.needs, progress)
    if name == "evaluate":
        comparison.write_returns(store, problem)


def main(folder: str, family: str, name: str) -> int:
    """A part by itself, of a run of this family."""
    exit_on_interrupt()
    exit_with_parent()
    use_all_cores(recorded_cores(Path(folder)))
    try:
        store = RunStore.open(folder, family=family)
        make_part(store, Problem(from_dict(store.config)), name, make_progress(False))
    except (ConfigError, RunError) as error:
        print(f"pdvf: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
