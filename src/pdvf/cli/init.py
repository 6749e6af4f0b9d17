"""`pdvf init`."""

from __future__ import annotations

from dataclasses import dataclass

from pdvf.cli.run import OnFamily
from pdvf.cli.shared import make_plan


@dataclass(frozen=True)
class Init(OnFamily):
    """Only writes the configuration of a run."""

    def main(self, said: str) -> int:
        """Makes the folder and says what comes next."""
        from pdvf.families.registry import family_names

        make_plan(self.out, self.config, said, ())
        own = "" if self.config.family in family_names() else f" --family {self.config.family}"
        print(f"{self.out}: configuration written; next: pdvf train {self.out}{own}")
        return 0
