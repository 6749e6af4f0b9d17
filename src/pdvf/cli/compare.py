"""`pdvf compare`."""

from __future__ import annotations

from dataclasses import dataclass

from pdvf.cli.run import Run
from pdvf.cli.shared import execute, make_plan


@dataclass(frozen=True)
class Compare(Run):
    """Trains and plays baselines and ablations beside PD-VF."""

    methods: tuple[str, ...] = ()
    """Methods to compare, as `pdvf list` names them, or Python files (docs/add_a_method.md); all for none."""

    def main(self, said: str) -> int:
        """What is missing of PD-VF's phases, then the methods."""
        return execute(make_plan(self.out, self.config, said, methods=self.methods), self.quiet, self.execution)
