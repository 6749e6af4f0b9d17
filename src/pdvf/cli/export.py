"""`pdvf export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Export:
    """One file that adapts with NumPy alone, for a robot."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run that has trained the method."""
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The file to write."""
    method: Literal["pd-vf", "pd-vf-plus"] = "pd-vf"
    """The paper's method, which probes first, or ours, which acts under a belief from the first step on."""
    model: int = 0
    """Which of the run's models, from 0."""
    family: str | None = None
    """The run's family, where it is your own: to open such a run is to run that code, so name it yourself."""

    def main(self, said: str) -> int:
        """Writes the file."""
        del said
        from pdvf.api import open_run

        file = open_run(self.run, self.family).export(self.file, self.model, self.method)
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB; load it with pdvf.load")
        return 0
