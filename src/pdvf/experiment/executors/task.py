"""One task in a process of its own: `python -m pdvf.experiment.executors.task RUN FAMILY NAME [--quiet] [--url URL]`.

With a URL the folder is a working copy of the run in an object store; one that is empty gets what the task needs.
Whoever starts it holds the run's lock and the other end of its standard input. Exit status 2 means that another try
would end alike, 75 that it may go well on another machine: this one's disk is full or fails.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from dataclasses import replace
from pathlib import Path

from pdvf.core.processes import exit_on_interrupt, exit_with_parent
from pdvf.experiment.errors import in_one_line
from pdvf.experiment.plan import find_task
from pdvf.experiment.progress import make_progress
from pdvf.experiment.provenance import use_recorded_cores
from pdvf.experiment.remote import remote_at
from pdvf.experiment.store import RunStore
from pdvf.experiment.sweep import problem_of

HERE = 75
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def main(folder: str, family: str, name: str, *words: str) -> int:
    """Makes a task of a run of this family."""
    exit_on_interrupt()
    exit_with_parent()
    remote = remote_at(words[-1]) if "--url" in words else None
    fresh = remote is not None and not Path(folder, "config.json").is_file()
    try:
        if remote is not None and fresh:
            remote.pull(Path(folder), lambda artefact: False)
        use_recorded_cores(folder)
        store = replace(RunStore.open(folder, trials=True, family=family), remote=remote)
        task = find_task(store, problem_of(store), name)
        if remote is not None and fresh:
            known = {*task.needs, *task.leaves}
            remote.pull(Path(folder), lambda artefact: artefact in known or artefact.startswith(f"{name}-stage-"))
        with store.lock_task(name):
            task.run(make_progress("--quiet" in words))
        if fresh:
            store.publish_logs()
    except Exception as error:
        fault = in_one_line(error)
        if fault is None:
            raise
        with contextlib.suppress(OSError):  # the log may be on the disk that is full
            print(f"pdvf: {fault}", file=sys.stderr)
        cause = fault.__cause__
        return HERE if isinstance(cause, OSError) and cause.errno in DISK else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
