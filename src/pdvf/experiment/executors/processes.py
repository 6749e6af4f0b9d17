"""Tasks of several runs side by side, each in a process of its own.

One program of small operations leaves most of a GPU idle; a dozen of them fill it. A task starts as soon as the
artefacts it needs are there, phases before methods. What a process says goes to RUN/logs/TASK.log. The processes end
when this one does, however it ends, and hold the runs' locks until then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pdvf.experiment.events import Follower, Listener, fail_event, write_event
from pdvf.experiment.files import writing
from pdvf.experiment.plan import Task, locks

PAUSE = 0.2
"""Seconds between two looks at the processes."""
PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
"""NVIDIA's MPS lets processes with 0 here go before those with 1."""


class Running(NamedTuple):
    """A task that is under way, and when it began."""

    task: Task
    process: subprocess.Popen[bytes]
    began: float

    def close(self) -> None:
        """Closes our end of its standard input, which tells it that we are there."""
        if self.process.stdin is not None:
            self.process.stdin.close()


def run(
    tasks: Sequence[Task],
    on_event: Listener,
    workers: int = 1,
    quiet: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> list[Task]:
    """As `Executor`: a task that fails holds up only those that need what it leaves."""
    waiting = sorted((task for task in tasks if not task.done), key=lambda task: task.priority)
    failed: list[Task] = []
    running: list[Running] = []
    followers = [Follower(folder) for folder in {task.store.folder for task in tasks}]
    with locks(tasks) as descriptors:
        for task in tasks:
            if task.done:
                task.store.clear_stages(task.name)  # left by a kill
        try:
            while waiting or running:
                left = [*waiting, *failed, *(one.task for one in running)]
                for task in [task for task in waiting if _may_start(task, left)][: workers - len(running)]:
                    waiting.remove(task)
                    running.append(Running(task, _start(task, descriptors, quiet), time.monotonic()))
                if not running:
                    break
                time.sleep(PAUSE)
                tick()
                for ended in [one for one in running if one.process.poll() is not None]:
                    running.remove(ended)
                    ended.close()
                    if ended.process.returncode:
                        failed.append(ended.task)
                        _write_failure(ended)
                for follower in followers:
                    for event in follower.new():
                        on_event(event)
        finally:
            for one in running:
                one.process.terminate()
            for one in running:
                one.process.wait()
                one.close()
    return failed + waiting


def _may_start(task: Task, left: Sequence[Task]) -> bool:
    """Whether a task's needs are there and nothing that is left to do goes before it.

    Methods wait for phase 1 even where they do not need it: everything else waits for it, and a GPU that trains its
    policies has no room to spare, unlike in the phases that follow. What leaves no artefact comes last, in order.
    """
    ours = [other for other in left if other is not task and other.store.folder == task.store.folder]
    if not task.leaves:
        return not any(other.leaves or left.index(other) < left.index(task) for other in ours)
    return task.ready and not any(other.priority == 0 for other in ours)


def _start(task: Task, locks: Sequence[int], quiet: bool) -> subprocess.Popen[bytes]:
    task.log.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pdvf.experiment.executors.task", str(task.store.folder)]
    command += [task.store.config["family"], task.name, *(["--quiet"] if quiet else [])]
    environment = {PRIORITY: str(int(task.priority > 1)), **os.environ}  # others wait for the phases
    with writing(task.log):
        log = open(task.log, "ab", opener=_not_through_links)  # noqa: SIM115
    with log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=locks, env=environment)


def _write_failure(ended: Running) -> None:
    task = ended.task
    lines = task.log.read_text(errors="replace").strip().splitlines()
    error = f"{lines[-1] if lines else 'it said nothing'} (all of it: {task.log})"
    event = fail_event(task.store.folder, task.name, error)
    write_event(task.store.folder, event._replace(seconds=time.monotonic() - ended.began))


def _not_through_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
