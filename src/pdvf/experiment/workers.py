"""Parts of several runs side by side, each in a process of its own.

One program of small operations leaves most of a GPU idle; a dozen of them fill it. A part starts as soon as the
artefacts it needs are there, phases before methods. What a process says goes to RUN/logs/NAME.log. The processes end
when this one does, however it ends, and hold the runs' locks until then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pdvf.experiment.comparison import with_needed
from pdvf.experiment.files import writing
from pdvf.experiment.parts import REPORT
from pdvf.experiment.progress import duration
from pdvf.experiment.store import RunStore
from pdvf.methods import Method, agent_artefact
from pdvf.paper.pipeline import PHASES, Problem

FIRST = ("policies",)
"""What every method waits for."""
PAUSE = 0.2
"""Seconds between two looks at the processes."""
PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
"""NVIDIA's MPS lets processes with 0 here go before those with 1."""


@dataclass(frozen=True)
class Job:
    """A part of a run, and the artefacts it needs and leaves."""

    store: RunStore
    name: str
    needs: tuple[str, ...]
    leaves: tuple[str, ...]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.store.folder.name} {self.name}"

    @property
    def log(self) -> Path:
        """What its process says."""
        return self.store.folder / "logs" / f"{self.name}.log"

    @property
    def ready(self) -> bool:
        """Whether everything it needs is there."""
        return all(self.store.has(name) for name in self.needs)

    @property
    def done(self) -> bool:
        """Whether everything it leaves is there; the report is always made anew."""
        return self.name != REPORT and all(self.store.has(name) for name in self.leaves)


class Running(NamedTuple):
    """A job that is under way, and when it began."""

    job: Job
    process: subprocess.Popen[bytes]
    began: float

    def close(self) -> None:
        """Closes our end of its standard input, which tells it that we are there."""
        if self.process.stdin is not None:
            self.process.stdin.close()


def jobs_of(store: RunStore, problem: Problem, methods: Sequence[Method]) -> list[Job]:
    """The parts of a run: its phases, its methods, then the report, which needs all of them.

    Methods wait for the policies of phase 1 even where they do not need them: everything else waits for these, and a
    GPU that trains them has no room to spare, unlike in the phases that follow.
    """
    jobs = [Job(store, name, spec.needs, spec.leaves) for name, spec in PHASES.items()]
    for method in with_needed(methods, problem):
        others = method.others(problem)
        needs = (*FIRST, *method.needs, *method.also(problem), *(f"returns-{other}" for other in others))
        jobs.append(Job(store, method.name, needs, (agent_artefact(method.name), f"returns-{method.name}")))
    return [*jobs, Job(store, REPORT, tuple(name for job in jobs for name in job.leaves), ())]


def work(
    jobs: Sequence[Job], workers: int, say: Callable[[str], None], tick: Callable[[], None] = lambda: None
) -> list[Job]:
    """Does all jobs, at most `workers` at a time; those that failed or had to wait for one that did.

    `say` hears a line whenever a job begins or ends; `tick` is called several times a second.
    """
    waiting = sorted((job for job in jobs if not job.done), key=lambda job: job.name not in PHASES)
    failed: list[Job] = []
    running: list[Running] = []
    stores = {job.store.folder: job.store for job in jobs}
    with ExitStack() as stack:
        locks = [stack.enter_context(store.lock()) for store in stores.values()]
        for job in jobs:
            if job.done:
                job.store.clear_stages(job.name)  # left by a kill
        try:
            while waiting or running:
                for job in [job for job in waiting if job.ready][: workers - len(running)]:
                    waiting.remove(job)
                    running.append(Running(job, _start(job, locks), time.monotonic()))
                    say(f"{job.title}: begins")
                if not running:
                    break
                time.sleep(PAUSE)
                tick()
                for ended in [one for one in running if one.process.poll() is not None]:
                    running.remove(ended)
                    ended.close()
                    job, took = ended.job, duration(time.monotonic() - ended.began)
                    if ended.process.returncode:
                        failed.append(job)
                        say(f"{job.title}: failed after {took}; {_last_line(job.log)} (all of it: {job.log})")
                    else:
                        say(f"{job.title}: done in {took}")
        finally:
            for one in running:
                one.process.terminate()
            for one in running:
                one.process.wait()
                one.close()
    return failed + waiting


def _start(job: Job, locks: Sequence[int]) -> subprocess.Popen[bytes]:
    job.log.parent.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pdvf.experiment.parts",
        str(job.store.folder),
        job.store.config["family"],
        job.name,
    ]
    environment = {PRIORITY: "0" if job.name in PHASES else "1", **os.environ}  # others wait for the phases
    with writing(job.log):
        log = open(job.log, "ab", opener=_not_through_links)  # noqa: SIM115
    with log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=locks, env=environment)


def _not_through_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
