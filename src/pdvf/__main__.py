"""The console script `pdvf`, and `python -m pdvf`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from pdvf.core.processes import exit_on_interrupt, ignore_interrupts


def entry() -> NoReturn:
    """Runs a command; whoever reads its output may stop reading, as `head` does."""
    exit_on_interrupt()
    from pdvf.cli.main import main  # after the line above: importing takes a while, too

    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere
        status = 1
    ignore_interrupts()
    sys.exit(status)


if __name__ == "__main__":
    entry()
