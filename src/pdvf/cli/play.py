"""`pdvf play`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

import tyro

from pdvf.cli.shared import wait_at


@dataclass(frozen=True)
class Play:
    """A live page of an exported model, with dials for what is hidden."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|NAME")]
    """A file that `pdvf export` wrote, of PD-VF or PD-VF-plus, or a model that comes with the package: spaceship."""
    family: str | None = None
    """The model's family, where it is your own: file.py:object or package.module:object."""
    host: str = "127.0.0.1"
    """Address of this machine to listen on; a page that other machines can reach asks for a token."""
    port: int = 8080
    """Port of the page; 0 takes a free one."""
    table: bool = False
    """No page: play in every test environment and print the returns."""
    episodes: int = 10
    """Episodes of the table in each test environment."""
    seed: int = 0
    """Seed of the start of the table's first episode."""

    def main(self, said: str) -> int:
        """Serves the page until it is stopped, or prints the returns."""
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # one environment at a time; read when JAX is imported
        from pdvf.deploy.pretrained import find, load, play, table
        from pdvf.families.mujoco import need

        file = find(self.file)
        if self.table:
            print(table(*play(file, self.episodes, self.seed, self.family)))
            return 0
        _, family = load(file, self.family)
        need("viser", "live", "the page of `pdvf play` (--table prints returns without one)")
        from pdvf.live.page import Page

        page = Page(family, file, self.host, self.port)
        return wait_at(file.stem, page.url)
