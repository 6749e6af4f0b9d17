"""`pdvf play`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Play:
    """Plays an exported model in unseen environments."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|NAME")]
    """A file that `pdvf export` wrote, of PD-VF or PD-VF-plus, or a model that comes with the package: spaceship."""
    family: str | None = None
    """The model's family, where it is your own: file.py:object or package.module:object."""
    episodes: int = 10
    """Episodes in each test environment."""
    seed: int = 0
    """Seed of the first episode's start."""

    def main(self, said: str) -> int:
        """Prints the returns."""
        del said
        from pdvf.deploy.pretrained import find, play, table

        print(table(*play(find(self.file), self.episodes, self.seed, self.family)))
        return 0
