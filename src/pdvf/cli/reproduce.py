"""`pdvf reproduce`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from pdvf.cli.shared import SERIAL, Executed, execute, make_plan
from pdvf.core.validation import ConfigError

if TYPE_CHECKING:
    from pdvf.experiment.events import Event
    from pdvf.experiment.plan import Task


@dataclass(frozen=True)
class Reproduce:
    """Every family and method of the paper, one page."""

    families: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[FAMILY ...]")] = ()
    """Families by name; all four for none."""
    preset: Literal["smoke", "quick", "paper", "best"] = "paper"
    """How large."""
    out: Path = Path("runs/reproduction")
    """Folder of all runs; OUT/status.html says what is done. The same command goes on where it stopped."""
    methods: tuple[str, ...] = ()
    """Methods to compare, as `pdvf list` names them, and what they rest on; all for none."""
    budget: Literal["paper", "equal"] = "paper"
    """Environment steps of every method: the paper's for each policy, or for all of its policies as many as PD-VF's."""
    seed: int = 0
    """Seed of everything that is random."""
    shards: int = 1
    """Parts of phase 1 and of each baseline, tasks of their own for several GPUs or nodes."""
    execution: Executed = SERIAL

    def main(self, said: str) -> int:
        """All plans together."""
        from pdvf.families.registry import family_names, make_family

        families = self.families or family_names()
        for family in families:
            if family not in family_names():
                raise ConfigError(f"unknown family {family!r}, expected some of: {', '.join(family_names())}")
        from pdvf.config.presets import preset
        from pdvf.experiment import comparison, reproduce
        from pdvf.experiment.plan import REPORT
        from pdvf.experiment.progress import ignore, make_progress, words
        from pdvf.experiment.remote import local_at, remote_at
        from pdvf.families.base import MujocoFamily
        from pdvf.families.mujoco import need

        comparison.find_methods(self.methods)  # or it raises
        if any(isinstance(make_family(family), MujocoFamily) for family in families):
            need("mujoco", "mujoco", "this reproduction")
        tasks: list[Task] = []
        out = local_at(self.out)
        for family in families:
            config = replace(preset(family, self.preset, self.budget), seed=self.seed, shards=self.shards)
            tasks += make_plan(self.out / family, config, said, methods=self.methods)
        planned = [(task.store.folder.name, task.name) for task in tasks]
        quiet = self.execution.quiet
        progress = make_progress(quiet, planned) if not self.execution.side_by_side else ignore

        def on_event(event: Event) -> None:
            progress(event)
            if event.kind != "stage":
                counted = reproduce.write_status(out, tasks)
                if not quiet:
                    sys.stderr.write(f"reproduce: {event.run} {words(event)} ({counted})\n")
                    sys.stderr.flush()
            if event.kind == "finish" and event.task == REPORT:
                reproduce.write_index(out)

        try:
            execute(tasks, self.execution, on_event)
        finally:
            reproduce.write_status(out, tasks)
            index = reproduce.write_index(out)
            if (remote := remote_at(self.out)) is not None:
                remote.publish(out, "index.html", "status.html")
        print(f"all tables and figures: {index}")
        return 0
