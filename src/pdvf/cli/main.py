"""Trains agents that adapt to hidden dynamics (a wind, a payload, other legs) within one episode.

    pdvf run spaceship --out RUN            trains, plays in unseen environments and reports; minutes
    pdvf check-family mine.py:family        is a family of your own fit for training, and how long will it take?
    pdvf run mine.py:family --out RUN       the same for your family; given again, it goes on where it was stopped
    pdvf export RUN model.pdvf              one file that adapts with NumPy alone, for a robot

`pdvf COMMAND --help` explains a command; `pdvf run spaceship --help` lists options; `pdvf --version`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from pdvf import __version__
from pdvf.cli import phases
from pdvf.cli.check_engine import CheckEngine
from pdvf.cli.check_family import CheckFamily
from pdvf.cli.compare import Compare
from pdvf.cli.diagnose import Diagnose
from pdvf.cli.export import Export
from pdvf.cli.init import Init
from pdvf.cli.list import List
from pdvf.cli.plan import Plan
from pdvf.cli.play import Play
from pdvf.cli.reproduce import Reproduce
from pdvf.cli.run import OnFamily, Run
from pdvf.cli.shared import Command
from pdvf.cli.sweep import Sweep
from pdvf.cli.watch import Watch
from pdvf.core.processes import INTERRUPTED, LINE
from pdvf.experiment.errors import in_one_line

COMMANDS: dict[str, type[Command]] = {
    "run": Run,
    "compare": Compare,
    "plan": Plan,
    "sweep": Sweep,
    "reproduce": Reproduce,
    "list": List,
    "check-family": CheckFamily,
    "check-engine": CheckEngine,
    "diagnose": Diagnose,
    "export": Export,
    "play": Play,
    "watch": Watch,
    "init": Init,
    **phases.COMMANDS,
}


@dataclass(frozen=True)
class First:
    """What decides the defaults of everything else, and is read first."""

    words: tyro.conf.Positional[tuple[str, ...]] = ()
    preset: str = "quick"
    budget: str = "paper"
    config: Path | None = None
    out: Path | None = None
    quiet: bool = False
    version: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; a user's mistake ends with one line and exit status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        first, _ = tyro.cli(First, prog="pdvf", args=arguments, return_unknown_args=True, add_help=False)
        if first.version:
            print(f"pdvf {__version__}")
            return 0
        return parse(first, arguments or ["--help"]).main(shlex.join(["pdvf", *arguments]))
    except KeyboardInterrupt:  # from Python; a process of its own never gets here (`processes.exit_on_interrupt`)
        print(LINE, file=sys.stderr)
        return INTERRUPTED
    except MemoryError:
        print("pdvf: out of memory; use a smaller preset or smaller batches", file=sys.stderr)
        return 2
    except Exception as error:
        fault = in_one_line(error)
        if fault is None:
            raise
        print(f"pdvf: {fault}", file=sys.stderr)
        return 2


def parse(first: First, arguments: Sequence[str]) -> Command:
    """A command with its arguments; the options of a configuration have the defaults of its family and preset."""
    name, target = (*first.words, "", "")[:2]
    kinds: list[Any] = []
    for known, kind in COMMANDS.items():
        default: Any = tyro.MISSING_NONPROP
        if known == name and target and issubclass(kind, OnFamily):
            from pdvf.config.presets import preset

            config = preset(target, first.preset, first.budget)
            if first.config is not None:
                from pdvf.experiment.config_file import with_file

                config = with_file(config, first.config)
            default = kind(family=tyro.MISSING, config=config, preset=first.preset)
        kinds.append(Annotated[kind, tyro.conf.subcommand(known, default=default)])
    return tyro.cli(
        Union[tuple(kinds)],  # type: ignore[arg-type]  # noqa: UP007
        prog="pdvf",
        description=__doc__,
        args=arguments,
        config=(tyro.conf.SuppressFixed,),
    )
