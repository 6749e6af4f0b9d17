"""`pdvf check-family`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class CheckFamily:
    """Is a family fit for training, and how long will it take?"""

    family: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FAMILY")]
    """A family that `pdvf list` names, or your own as file.py:object or package.module:object."""
    engine: str = "auto"
    """What simulates."""
    seed: int = 0
    """Seed of everything that is random."""

    def main(self, said: str) -> int:
        """Prints the table; 1 where something is amiss."""
        from pdvf.config.presets import PRESETS, preset
        from pdvf.experiment import family_checker
        from pdvf.families.registry import make_family

        presets = {name: preset(self.family, name) for name in PRESETS if name != "best"}
        family = make_family(self.family, presets["quick"].environment)
        found = family_checker.check_family(family, self.seed, self.engine, presets)
        print(family_checker.table(family, found))
        return 0 if all(finding.good for finding in found) else 1
