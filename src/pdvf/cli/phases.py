"""`pdvf train`, `collect`, `embed`, `fit`, `evaluate` and `report`: one phase of an existing run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from pdvf.cli.shared import SERIAL, Executed, execute, make_plan


@dataclass(frozen=True)
class OfRun:
    """A command on an existing run."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run, made by `pdvf init` or `pdvf run`."""
    family: str | None = None
    """The run's family, where it is your own: to open such a run is to run that code, so name it yourself."""


@dataclass(frozen=True)
class Phase(OfRun):
    """One phase of an existing run."""

    execution: Executed = SERIAL
    phases: ClassVar[tuple[str, ...]]

    def main(self, said: str) -> int:
        """Makes what the phase leaves."""
        return execute(make_plan(self.run, None, said, self.phases, family=self.family), self.execution)


def phase(text: str, *phases: str) -> type[Phase]:
    """A command that makes what some phases leave."""
    return type("Phase", (Phase,), {"__doc__": text, "phases": phases})


COMMANDS = {
    "train": phase("Phase 1: PPO policies for every training environment.", "train"),
    "collect": phase("Phase 2: trajectories of every kept policy.", "collect"),
    "embed": phase("Phase 2: the dynamics and the policy autoencoder.", "embed"),
    "fit": phase("Phase 3: the value function, with aggregation.", "fit"),
    "evaluate": phase(
        "Phase 4: PPOenv's policies, then one episode at a time; RUN/returns.csv.", "evaluate", "returns"
    ),
    "report": phase("Figures and RUN/report.html.", "report"),
}
