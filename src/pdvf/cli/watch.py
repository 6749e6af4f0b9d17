"""`pdvf watch`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pdvf.cli.shared import wait_at


@dataclass(frozen=True)
class Watch:
    """A live page of a run while it trains."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run, also of one that another machine is at work on; only its event stream is read."""
    host: str = "127.0.0.1"
    """Address of this machine to listen on; a page that other machines can reach asks for a token."""
    port: int = 8081
    """Port of the page; 0 takes a free one."""

    def main(self, said: str) -> int:
        """Serves the page until it is stopped."""
        from pdvf.live.watch import serve

        return wait_at(str(self.run), serve(self.run, self.host, self.port).url)
