"""What a plan would cost: its tasks on so many GPUs or CPUs, from times that were measured in another run."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from pdvf.experiment.plan import PART, Task, whole_of
from pdvf.methods import METHODS, complete
from pdvf.methods.multitask_ppo import method_ppo
from pdvf.paper.pipeline import PHASES, Problem

NUMBERS = 8
"""Numbers of a step in a rollout beside observation and action: reward, value, advantage, ..."""


class Job(NamedTuple):
    """A task with the time that it takes."""

    run: str
    name: str
    needs: tuple[str, ...]
    leaves: tuple[str, ...]
    priority: int
    share: float
    """Of a machine: a GPU, or a CPU."""
    seconds: float
    part: float = 1.0
    """Of the work of its whole task; 0 where it only joins parts."""


class Schedule(NamedTuple):
    """When jobs begin, and how long all of them take."""

    begins: Mapping[tuple[str, str], float]
    seconds: float
    busy: float
    """Share of the machines' time that jobs have taken."""


def schedule(jobs: Sequence[Job], machines: int) -> Schedule:
    """Starts each job as soon as an executor would: needs first, phase 1 before all else of its run."""
    waiting = sorted(jobs, key=lambda job: job.priority)
    there, begins = set[tuple[str, str]](), dict[tuple[str, str], float]()
    free, now = [1.0] * machines, 0.0
    running: list[tuple[float, int, int]] = []  # end, place among the jobs started, machine
    started: list[Job] = []
    while waiting or running:
        first = {job.run for job in [*waiting, *(started[i] for _, i, _ in running)] if job.priority == 0}
        for job in list(waiting):
            ready = all((job.run, need) in there for need in job.needs)
            machine = max(range(machines), key=free.__getitem__)
            if ready and (job.priority == 0 or job.run not in first) and free[machine] >= job.share - 1e-9:
                waiting.remove(job)
                free[machine] -= job.share
                begins[job.run, job.name] = now
                heapq.heappush(running, (now + job.seconds, len(started), machine))
                started.append(job)
        if not running:
            raise ValueError(f"{waiting[0].name} can never start: nothing leaves what it needs")
        now, i, machine = heapq.heappop(running)
        free[machine] += started[i].share
        there |= {(started[i].run, leaf) for leaf in started[i].leaves}
    work = sum(job.share * job.seconds for job in jobs)
    return Schedule(begins, now, work / (now * machines) if now else 0.0)


def longest_chain(jobs: Sequence[Job]) -> tuple[float, list[Job]]:
    """The jobs that bound the time on any number of machines, each waiting for the one before."""
    makers = {(job.run, leaf): job for job in jobs for leaf in job.leaves}

    @cache
    def chain(job: Job) -> tuple[float, list[Job]]:
        before = [chain(makers[job.run, need]) for need in job.needs if (job.run, need) in makers]
        if job.priority:  # waits for phase 1 in any case
            before += [chain(other) for other in jobs if other.run == job.run and other.priority == 0]
        seconds, jobs_before = max(before, default=(0.0, []), key=lambda found: found[0])
        return seconds + job.seconds, [*jobs_before, job]

    return max(map(chain, jobs), key=lambda found: found[0])


def jobs_of(tasks: Sequence[Task], seconds: Mapping[str, float], gpus: bool, start: float = 0.0) -> list[Job]:
    """Jobs of tasks that are not done, from the seconds of whole tasks by name; a part takes its part and a `start`.

    Joining parts takes a `start` alone, which is the time of a process to begin and to compile.
    """
    parts = Counter((task.store.folder.name, whole_of(task.name)) for task in tasks if PART in task.name)
    jobs = []
    for task in tasks:
        if task.leaves and not task.done:
            run, whole, share = task.store.folder.name, whole_of(task.name), task.gpus if gpus else 1.0
            count = parts[run, whole]
            part = 1.0 if not count else 1 / count if PART in task.name else 0.0
            taken = seconds.get(whole, 0.0) * part + (start if count else 0.0)
            jobs.append(Job(run, task.name, task.needs, task.leaves, task.priority, share, taken, part))
    return jobs


def planned_steps(problem: Problem, task: str) -> int:
    """Environment steps of reinforcement learning in a task of a problem without its synthesised environments."""
    policies = _policies(problem, task)
    each = problem.config.ppo.steps if task in (complete.NAME, *PHASES) else problem.policy_steps(max(policies, 1))
    return policies * each


def _policies(problem: Problem, task: str) -> int:
    """Policies that a task trains, of all seeds together."""
    train, made, seeds = len(problem.contexts), problem.config.complete, problem.config.policy_seeds
    if task == complete.NAME:
        return min(made, 1)
    if task in METHODS:
        return seeds * METHODS[task].policies(problem.config)
    return {"train": train + made, "bound": len(problem.everywhere) - train}.get(task, 0) * seeds


def rollout_bytes(problem: Problem, task: str) -> int:
    """Bytes of the steps that are in memory at once while a task learns: it takes that and more."""
    policies, family = _policies(problem, task), problem.engine.family
    options = problem.config.ppo if task in PHASES else method_ppo(problem, max(policies, 1))
    numbers = family.observation.size + family.action.size + NUMBERS
    return 4 * policies * options.environments * options.rollout * numbers


def scaled_seconds(now: Problem, then: Problem, seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of tasks, from those of another run: by environment steps where there are any, else as they were."""
    found: dict[str, float] = {}
    for task, taken in seconds.items():
        steps, were = planned_steps(now, task), planned_steps(then, task)
        found[task] = taken * steps / were if were else taken
    return found
