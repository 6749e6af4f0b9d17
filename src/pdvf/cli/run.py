"""`pdvf run`, and what all commands share that begin with a family."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from pdvf.cli.shared import SERIAL, Executed, execute, make_plan


@dataclass(frozen=True)
class OnFamily:
    """A command on a family and the options of a run."""

    family: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FAMILY")]
    """A family that `pdvf list` names, such as spaceship, or your own as file.py:object or package.module:object.
    With --help after it its options are listed."""
    config: Annotated[Any, tyro.conf.arg(name="")] = None
    out: Path = Path("runs/latest")
    """Folder, made if it is not there; the same command on the same folder goes on where it stopped."""
    preset: str = "quick"
    """Where the defaults of all other options come from: smoke, quick, paper or best."""
    file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """Options from a .yaml or .json file, such as a run's config.json, which has all of them, also those that are not
    listed here; those on the command line win."""


@dataclass(frozen=True)
class Run(OnFamily):
    """Trains on a family, plays in unseen environments, reports."""

    execution: Executed = SERIAL
    methods: tuple[str, ...] = ()
    """More methods to train and play beside PD-VF, NN and PPOenv, as `pdvf list` names them, or Python files."""

    def main(self, said: str) -> int:
        """All phases, the methods and the report."""
        from pdvf.experiment.plan import EVERYTHING

        return execute(make_plan(self.out, self.config, said, EVERYTHING, self.methods or None), self.execution)
