"""One task in a process of its own: `python -m pdvf.experiment.executors.task RUN FAMILY NAME [--quiet]`.

Whoever starts it holds the run's lock and the other end of its standard input. Exit status 2 means that another try
would end alike, 75 that it may go well on another machine: this one's disk is full or fails.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from pdvf.config import from_dict
from pdvf.core.devices import use_all_cores
from pdvf.core.processes import exit_on_interrupt, exit_with_parent
from pdvf.core.validation import OneLineError
from pdvf.experiment.plan import find_task
from pdvf.experiment.progress import make_progress
from pdvf.experiment.provenance import recorded_cores
from pdvf.experiment.store import RunStore
from pdvf.families.env_pool import fault_of
from pdvf.paper.pipeline import Problem

HERE = 75
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def main(folder: str, family: str, name: str, *flags: str) -> int:
    """Makes a task of a run of this family."""
    exit_on_interrupt()
    exit_with_parent()
    use_all_cores(recorded_cores(Path(folder)))
    try:
        store = RunStore.open(folder, family=family)
        with store.lock_task(name):
            find_task(store, Problem(from_dict(store.config)), name).run(make_progress("--quiet" in flags))
    except Exception as error:  # JAX wraps what a user's environment raises
        fault = error if isinstance(error, OneLineError) else fault_of(error)
        if fault is None:
            raise
        print(f"pdvf: {fault}", file=sys.stderr)
        cause = fault.__cause__
        return HERE if isinstance(cause, OSError) and cause.errno in DISK else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
