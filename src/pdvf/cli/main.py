"""Trains agents that adapt to hidden dynamics (a wind, a payload, other legs) within one episode.

Try it:

    pdvf run spaceship --preset quick --out RUN     trains, plays in unseen environments and reports; minutes
    pdvf run mine.py:family --preset quick --out RUN    the same for a family of your own; goes on where it was stopped
    pdvf check-family mine.py:family                is your family fit for training, and how long will it take?
    pdvf export RUN model.pdvf                      one file that adapts with NumPy alone, for a robot

Compare and search:

    pdvf compare spaceship --preset quick --out RUN [--methods rl2 maml ...]
                                                    every baseline and ablation beside PD-VF
    pdvf sweep spaceship --option ppo.learning_rate 1e-4 3e-4 --out SWEEP
                                                    searches options on training environments
    pdvf reproduce [FAMILY ...] --preset paper      every family and method of the paper, one page

Look closer:

    pdvf list                                       families, presets, methods
    pdvf report RUN                                 figures and RUN/report.html
    pdvf diagnose RUN                               what holds a trained PD-VF back, in five numbers
    pdvf evaluate --pretrained FILE                 plays an exported model in the test environments
    pdvf init FAMILY --out RUN                      only writes the configuration
    pdvf train|collect|embed|fit|evaluate RUN       one phase; --family TARGET where the run's family is your own
    pdvf check-engine FAMILY --engine warp          a MuJoCo engine against MuJoCo in C
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import tyro

from pdvf import __version__
from pdvf.cli import commands
from pdvf.cli.arguments import CompareArguments, PhaseArguments, ReproduceArguments, RunArguments, SweepArguments
from pdvf.config import Config, ConfigError, from_dict, to_dict
from pdvf.config.presets import PRESETS, preset
from pdvf.core.processes import INTERRUPTED, LINE
from pdvf.experiment.errors import RunError
from pdvf.families.registry import family_names, find_spec, make_family

if TYPE_CHECKING:
    from pdvf.experiment.events import Event
    from pdvf.experiment.plan import Task

FAMILY_FIRST = ("run", "init", "compare", "sweep", "check-engine", "check-family")
PHASE_NAMES = ("train", "collect", "embed", "fit", "evaluate")


Given = TypeVar("Given", bound=RunArguments)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; a user's mistake ends with one line and exit status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except (ConfigError, RunError) as error:
        print(f"pdvf: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # from Python; a process of its own never gets here (`processes.exit_on_interrupt`)
        print(LINE, file=sys.stderr)
        return INTERRUPTED
    except MemoryError:
        print("pdvf: out of memory; use a smaller preset or smaller batches", file=sys.stderr)
        return 2
    except Exception as error:
        from pdvf.families.env_pool import fault_of

        fault = fault_of(error)  # JAX wraps what a user's environment raises
        if fault is None:
            raise
        print(f"pdvf: {fault}", file=sys.stderr)
        return 2


def _dispatch(arguments: list[str]) -> int:
    known: dict[str, Callable[[list[str]], int]] = {
        "run": lambda rest: _run("run", rest),
        "init": lambda rest: _run("init", rest),
        "compare": _compare,
        "reproduce": _reproduce,
        "sweep": _sweep,
        **{name: (lambda rest, name=name: _phase(name, rest)) for name in (*PHASE_NAMES, "report")},
        "diagnose": commands.diagnose,
        "check-engine": commands.check_engine,
        "check-family": commands.check_family,
        "export": commands.export,
        "list": _list,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip() if __doc__ else "")
        print("\nEach command explains itself with --help; `pdvf run spaceship --help` lists every option.")
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"pdvf {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in known:
        raise ConfigError(f"unknown command {command!r}, expected one of: {', '.join(known)}")
    if command in FAMILY_FIRST and rest[:1] in (["-h"], ["--help"]):
        rest = [family_names()[0], "--help"]  # one of the families will do to explain the command
    return known[command](rest)


def _run(command: str, rest: list[str]) -> int:
    """`run` and `init`: the family and the preset decide the defaults that --help shows."""
    given = _parse_run(command, rest, RunArguments)
    if command == "init":
        _plan(given.out, given.config, _command(command, rest), ())
        family = given.config.family
        own = "" if family in family_names() else f" --family {family}"
        print(f"{given.out}: configuration written; next: pdvf train {given.out}{own}")
        return 0
    return _execute(_plan(given.out, given.config, _command(command, rest)), given.quiet)


def _compare(rest: list[str]) -> int:
    given = _parse_run("compare", rest, CompareArguments)
    return _execute(_plan(given.out, given.config, _command("compare", rest), methods=given.methods), given.quiet)


def _reproduce(rest: list[str]) -> int:
    given = tyro.cli(ReproduceArguments, prog="pdvf reproduce", args=rest)
    families = given.families or family_names()
    for family in families:
        if family not in family_names():
            raise ConfigError(f"unknown family {family!r}, expected some of: {', '.join(family_names())}")
    if given.workers < 1:
        raise ConfigError(f"--workers is {given.workers}, expected at least 1")
    if given.workers > 1:
        # For this process and those it starts: else the first on a GPU takes three quarters of its memory.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from pdvf.experiment import comparison, reproduce
    from pdvf.experiment.executors import EXECUTORS
    from pdvf.experiment.plan import REPORT
    from pdvf.experiment.progress import ignore, make_progress, words
    from pdvf.families.base import MujocoFamily
    from pdvf.families.mujoco import need

    comparison.find_methods(given.methods)  # or it raises
    if any(isinstance(make_family(family), MujocoFamily) for family in families):
        need("mujoco", "mujoco", "this reproduction")
    tasks: list[Task] = []
    for family in families:
        config = replace(preset(family, given.preset), seed=given.seed)
        tasks += _plan(given.out / family, config, _command("reproduce", rest), methods=given.methods)
    status = reproduce.Status(given.out, tasks, given.workers)
    progress = make_progress(given.quiet) if given.workers == 1 else ignore

    def on_event(event: Event) -> None:
        progress(event)
        if event.kind != "stage":
            counted = status.write()
            if not given.quiet:
                sys.stderr.write(f"reproduce: {event.run} {words(event)} ({counted})\n")
                sys.stderr.flush()
        if event.kind == "finish" and event.task == REPORT:
            reproduce.write_index(given.out)

    executor = EXECUTORS["serial" if given.workers == 1 else "processes"]
    try:
        undone = executor(tasks, on_event, given.workers, given.quiet, status.write_clock)
    finally:
        status.write()  # how long it was at work, also when it is stopped
    print(f"all tables and figures: {reproduce.write_index(given.out)}")
    if undone:
        raise RunError(
            f"{len(undone)} tasks are not done: {', '.join(task.title for task in undone)}; OUT/FAMILY/logs say why, "
            "and the same command tries again (with fewer --workers, if memory was short)"
        )
    return 0


def _sweep(rest: list[str]) -> int:
    rest, options = _take_options(rest)
    given = _parse_run("sweep", rest, SweepArguments)
    from pdvf.core.devices import use_all_cores
    from pdvf.experiment.provenance import recorded_cores

    use_all_cores(recorded_cores(given.out / "trials" / "001"))
    from pdvf.experiment.progress import make_progress
    from pdvf.experiment.sweep import make_sweep

    sweep = make_sweep(given.config, options, given.grid, given.method, given.held_out)
    print(f"budget: {sweep.budget()}", flush=True)
    if not given.dry_run:
        command = _command("sweep", rest)
        print(
            f"table: {sweep.run(given.out, command, make_progress(given.quiet), lambda line: print(line, flush=True))}"
        )
    return 0


def _take_options(words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Splits `--option NAME VALUE ...` off; values end at the next word with two dashes."""
    rest: list[str] = []
    options: dict[str, list[str]] = {}
    values: list[str] | None = None
    for i, word in enumerate(words):
        if word == "--option":
            name = words[i + 1] if i + 1 < len(words) else ""
            if not name or name.startswith("--"):
                raise ConfigError("--option needs a name and values, for example --option ppo.learning_rate 1e-4 3e-4")
            values = options.setdefault(name, [])
        elif word.startswith("--") or values is None:
            values = None
            rest.append(word)
        elif words[i - 1] != "--option":
            values.append(word)
    return rest, options


def _parse_run(command: str, rest: list[str], arguments: type[Given]) -> Given:
    if not rest or rest[0].startswith("-"):
        raise ConfigError(
            f"`pdvf {command}` needs a family first, expected one of: {', '.join(family_names())}, or your own as "
            f"package.module:object; for example "
            f"`pdvf {command} spaceship --preset quick --out RUN` (--help after the family lists every option)"
        )
    family, name = rest[0], _option(rest, "--preset") or "quick"
    if command == "sweep" and Path(family, "config.json").is_file():
        from pdvf.experiment.store import RunStore

        rest, own = _take_family(rest)
        defaults = from_dict(RunStore.open(family, trials=True, family=own).config)
    else:
        defaults = preset(family, name)
    return tyro.cli(
        arguments,
        prog=f"pdvf {command} {family}",
        args=rest[1:],
        default=arguments(config=defaults, preset=name),
        config=(tyro.conf.AvoidSubcommands,),
    )


def _take_family(words: list[str]) -> tuple[list[str], str | None]:
    """Splits `--family TARGET` off: a family is no option of a configuration."""
    rest: list[str] = []
    family = None
    given = iter(words)
    for word in given:
        if word == "--family":
            family = next(given, None)
        elif word.startswith("--family="):
            family = word.split("=", 1)[1]
        else:
            rest.append(word)
    return rest, family


def _phase(name: str, rest: list[str]) -> int:
    if name == "evaluate" and any(word.startswith("--pretrained") for word in rest):
        return commands.pretrained(rest)
    given = tyro.cli(PhaseArguments, prog=f"pdvf {name}", args=rest, description=PHASE_HELP[name])
    phases = ("evaluate", "returns") if name == "evaluate" else (name,)
    return _execute(_plan(given.run, None, _command(name, rest), phases, family=given.family), given.quiet)


PHASE_HELP = {
    "train": "Phase 1: PPO policies for every environment.",
    "collect": "Phase 2: trajectories of every kept policy in every training environment.",
    "embed": "Phase 2: the dynamics and the policy autoencoder.",
    "fit": "Phase 3: the value function, with aggregation for it and for the policy decoder.",
    "evaluate": "Phase 4: one episode in each environment; writes RUN/returns.csv.",
    "report": "Figures and RUN/report.html.",
}


def _plan(
    folder: Path,
    config: Config | None,
    command: str,
    phases: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    family: str | None = None,
) -> list[Task]:
    """What there is to do in a run folder, made anew when a configuration is given; no phases: all of them.

    What may be refused comes before the folder is made: family, engine and methods.
    """
    from pdvf.core.devices import use_all_cores
    from pdvf.experiment.provenance import changed_since, recorded_cores

    use_all_cores(recorded_cores(folder))
    from pdvf.experiment.comparison import find_methods, suited
    from pdvf.experiment.plan import EVERYTHING, REPORT, plan
    from pdvf.experiment.store import RunStore
    from pdvf.paper.pipeline import Problem

    chosen = [] if methods is None else find_methods(methods)
    phases = EVERYTHING if phases is None else phases
    store = None
    if config is None:
        store = RunStore.open(folder, family=family)
        config = from_dict(store.config)
    problem = Problem(config)
    chosen = suited(chosen, problem, bool(methods))
    if store is None:
        assert problem.engine  # made, or it has raised
        store = RunStore.create(folder, to_dict(config), command)
    if set(phases) - {REPORT} and (change := changed_since(folder)):
        print(f"pdvf: {folder} was begun elsewhere ({change}): what is made now has other bits", file=sys.stderr)
    return plan(store, problem, chosen, phases)


def _execute(tasks: Sequence[Task], quiet: bool) -> int:
    """Runs a plan here and says where its report is, if it has one."""
    from pdvf.experiment.executors import EXECUTORS
    from pdvf.experiment.plan import REPORT
    from pdvf.experiment.progress import make_progress

    EXECUTORS["serial"](tasks, make_progress(quiet))
    for task in tasks:
        if task.name == REPORT:
            from pdvf.reports.data import read_returns
            from pdvf.reports.tables import terminal

            print(terminal(read_returns(task.store)))
            print(f"report: {task.store.folder / 'report.html'}")
    return 0


def _list(rest: list[str]) -> int:
    if rest and rest[0] not in ("-h", "--help"):
        raise ConfigError(f"`pdvf list` takes no arguments, given: {' '.join(rest)}")
    from pdvf.methods import METHODS

    for title, entries in (
        ("families", {name: find_spec(name).text for name in family_names()}),
        ("presets", PRESETS),
        ("methods", {name: method.text for name, method in METHODS.items()}),
    ):
        print(f"{title}:")
        for name, text in entries.items():
            print(f"  {name:<13} {text}")
    return 0


def _option(arguments: list[str], name: str) -> str | None:
    """The value of `--name value` or `--name=value`."""
    for i, word in enumerate(arguments):
        if word == name and i + 1 < len(arguments):
            return arguments[i + 1]
        if word.startswith(name + "="):
            return word.split("=", 1)[1]
    return None


def _command(command: str, rest: list[str]) -> str:
    return shlex.join(["pdvf", command, *rest])
