"""Tasks of several runs side by side, each in a process of its own.

One program of small operations leaves most of a GPU idle; a dozen of them fill it. A task starts as soon as the
artefacts it needs are there, phases before methods. What a process says goes to RUN/logs/TASK.log. The processes end
when this one does, however it ends, and hold the runs' locks until then.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from pdvf.experiment.events import Follower, Listener, fail_event, write_event
from pdvf.experiment.files import writing
from pdvf.experiment.node import last_line, open_log, spawn
from pdvf.experiment.plan import Task, locks, may_start

PAUSE = 0.2
"""Seconds between two looks at the processes."""
PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
"""NVIDIA's MPS lets processes with 0 here go before those with 1."""


class Process(Protocol):
    """A task that is being made somewhere."""

    def poll(self) -> int | None:
        """Its exit status once it has ended."""
        ...

    def terminate(self) -> None:
        """Asks it to end."""
        ...

    def close(self) -> None:
        """Waits for its end and lets go of it."""
        ...

    def error(self) -> str:
        """Why it failed."""
        ...


class Local(NamedTuple):
    """One on this machine."""

    process: subprocess.Popen[bytes]
    log: Path

    def poll(self) -> int | None:
        """As `Process`."""
        return self.process.poll()

    def terminate(self) -> None:
        """As `Process`."""
        self.process.terminate()

    def close(self) -> None:
        """Also closes our end of its standard input, which tells it that we are there."""
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def error(self) -> str:
        """The last line of its log."""
        return f"{last_line(self.log)} (all of it: {self.log})"


class Running(NamedTuple):
    """A task that is under way, and when it began."""

    task: Task
    process: Process
    began: float


def run(
    tasks: Sequence[Task],
    on_event: Listener,
    workers: int = 1,
    quiet: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> list[Task]:
    """As `Executor`: a task that fails holds up only those that need what it leaves."""
    with locks(tasks) as descriptors:
        return run_side_by_side(
            tasks, on_event, workers, lambda task: Local(start(task, descriptors, quiet), task.log), tick
        )


def run_side_by_side(
    tasks: Sequence[Task],
    on_event: Listener,
    workers: int,
    begin: Callable[[Task], Process],
    tick: Callable[[], None],
) -> list[Task]:
    """Starts each task as soon as it may, so many at a time; the caller holds the runs' locks."""
    waiting = sorted((task for task in tasks if not task.done), key=lambda task: task.priority)
    failed: list[Task] = []
    running: list[Running] = []
    followers = [Follower(folder) for folder in {task.store.folder for task in tasks}]
    for task in tasks:
        if task.done:
            task.store.clear_stages(task.name)  # left by a kill
    try:
        while waiting or running:
            tick()
            left = [*waiting, *failed, *(one.task for one in running)]
            for task in [task for task in waiting if may_start(task, left)][: workers - len(running)]:
                waiting.remove(task)
                running.append(Running(task, begin(task), time.monotonic()))
            if not running:
                break
            time.sleep(PAUSE)
            for ended in [one for one in running if one.process.poll() is not None]:
                running.remove(ended)
                ended.process.close()
                if ended.process.poll():
                    failed.append(ended.task)
                    run, taken = ended.task.store.folder, time.monotonic() - ended.began
                    write_event(run, fail_event(run, ended.task.name, ended.process.error(), taken))
            for follower in followers:
                for event in follower.new():
                    on_event(event)
        tick()
    finally:
        for one in running:
            one.process.terminate()
        for one in running:
            one.process.close()
    return failed + waiting


def command(task: Task, quiet: bool) -> list[str]:
    """What Python is given to make a task in a process of its own."""
    store = task.store
    words = ["-m", "pdvf.experiment.executors.task", str(store.folder), store.config["family"], task.name]
    return [*words, *(["--quiet"] if quiet else []), *(["--url", store.remote.url] if store.remote else [])]


def environment(task: Task) -> dict[str, str]:
    """What joins the environment of its process: others wait for the phases."""
    return {PRIORITY: str(int(task.priority > 1))}


def start(task: Task, locks: Sequence[int], quiet: bool) -> subprocess.Popen[bytes]:
    """Starts a process here that shares the locks; what it says goes to the task's log."""
    with writing(task.log):
        log = open_log(task.log)
    return spawn(command(task, quiet), log, environment(task) | os.environ, pass_fds=locks)
