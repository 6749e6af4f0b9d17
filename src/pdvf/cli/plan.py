"""`pdvf plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pdvf.cli.run import OnFamily
from pdvf.core.validation import require

START = 20.0
"""Seconds that a process is taken to need to begin and to compile, which parts (--shards) do not share."""


@dataclass(frozen=True)
class Plan(OnFamily):
    """Says what `pdvf compare` would do: tasks, environment steps, memory, and time on so many nodes."""

    methods: tuple[str, ...] = ()
    """Methods, as for `pdvf compare`."""
    nodes: int = 1
    """Nodes of the cluster."""
    gpus: int = 1
    """GPUs of each; 0 for nodes without one, which make one task at a time."""
    like: Path | None = None
    """A finished run on such a machine, whose times are scaled to this one. None: no times."""

    def main(self, said: str) -> int:
        """Prints a table."""
        from pdvf.config import from_dict, to_dict
        from pdvf.experiment import schedule
        from pdvf.experiment.comparison import find_methods
        from pdvf.experiment.plan import plan, whole_of
        from pdvf.experiment.remote import local_at
        from pdvf.experiment.store import RunStore
        from pdvf.paper.pipeline import Problem

        for name, least in (("nodes", 1), ("gpus", 0)):
            require(getattr(self, name) >= least, f"--{name}", getattr(self, name), f"at least {least}")
        problem = Problem(self.config)
        store = RunStore(local_at(self.out), to_dict(self.config))
        tasks = plan(store, problem, find_methods(self.methods))
        seconds: dict[str, float] = {}
        if self.like is not None:
            other = RunStore.open(self.like, family=self.config.family)
            left = {task.name: name for task in tasks for name in reversed(task.leaves) if other.has(name)}
            taken = {task: float(other.info(name).get("seconds") or 0.0) for task, name in left.items()}
            seconds = schedule.scaled_seconds(problem, Problem(from_dict(other.config)), taken)
        jobs = schedule.jobs_of(tasks, seconds, self.gpus > 0, START)
        machines = self.nodes * max(self.gpus, 1)
        made = schedule.schedule(jobs, machines) if jobs else None
        unit = "GPU" if self.gpus else "node"
        print(f"{'task':28}{unit:>6}{'environment steps':>20}{'rollouts':>12}{'seconds':>10}{'begins':>9}")
        for job in jobs:
            base = whole_of(job.name)
            steps = round(schedule.planned_steps(problem, base) * job.part)
            size = schedule.rollout_bytes(problem, base) * job.part / 2**20 if steps else 0
            time = f"{job.seconds:10.0f}{made.begins[job.run, job.name]:9.0f}" if made and seconds else ""
            memory = f"{size:.1f} MiB" if size else ""
            print(f"{job.name:28}{job.share:6.3g}{steps or '':>20}{memory:>12}{time}")
        where = f"{self.nodes} nodes with {self.gpus} GPUs each"
        if made is None:
            print("everything is done")
        elif not seconds:
            print(f"{len(jobs)} tasks on {where}; --like RUN, a finished run on such a machine, adds times")
        else:
            alone, (longest, chain) = schedule.schedule(jobs, 1).seconds, schedule.longest_chain(jobs)
            print(
                f"{len(jobs)} tasks on {where}: {made.seconds:.0f} s, {made.busy:.0%} busy; on one {unit} {alone:.0f} s"
            )
            print(f"no cluster is faster than {longest:.0f} s: {' > '.join(job.name for job in chain)}")
            if missing := sorted({whole_of(job.name) for job in jobs} - {*seconds}):
                print(f"without a measured time, counted as 0 s: {', '.join(missing)}")
        return 0
