"""`pdvf compare`."""

from __future__ import annotations

from dataclasses import dataclass

from pdvf.cli.run import Run
from pdvf.cli.shared import execute, make_plan


@dataclass(frozen=True)
class Compare(Run):
    """Trains and plays methods beside each other, and what they rest on."""

    methods: tuple[str, ...] = ()
    """Methods to compare, as `pdvf list` names them, or Python files (docs/add_a_method.md). All for none, with
    the figures of `pdvf run`."""

    def main(self, said: str) -> int:
        """What is missing of the phases that methods rest on, then the methods."""
        return execute(make_plan(self.out, self.config, said, methods=self.methods), self.execution)
