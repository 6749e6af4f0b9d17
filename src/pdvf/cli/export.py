"""`pdvf export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Export:
    """One file that acts with NumPy alone, or in any ONNX runtime, for a robot."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run that has trained the method."""
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The file to write; with the ending .onnx an ONNX graph (pip install 'pdvf[export]')."""
    method: str = "pd-vf"
    """A method that `pdvf list` names, or a Python file with one; not those that are told the hidden context."""
    model: int = 0
    """Which of the run's models, from 0."""
    licence: str = "not stated"
    """What the model card says of the licence."""
    card: Path | None = None
    """Also write the model card, as Markdown, to this file."""
    family: str | None = None
    """The run's family, where it is your own: to open such a run is to run that code, so name it yourself."""

    def main(self, said: str) -> int:
        """Writes the file."""
        from pdvf.api import open_run
        from pdvf.deploy.card import markdown
        from pdvf.deploy.model_format import read
        from pdvf.deploy.onnx_graph import about
        from pdvf.experiment.files import write_file

        file = open_run(self.run, self.family).export(self.file, self.model, self.method, self.licence)
        onnx = file.suffix == ".onnx"
        print(f"{file}: {file.stat().st_size / 1e6:.2f} MB; load it with {'an ONNX runtime' if onnx else 'pdvf.load'}")
        if self.card is not None:
            write_file(self.card, markdown(about(file) if onnx else read(file)[0]).encode())
            print(f"{self.card}: its model card")
        return 0
