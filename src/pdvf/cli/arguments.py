"""What each command takes; the docstrings are the help it shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from pdvf.config import Config


@dataclass(frozen=True)
class RunArguments:
    """All phases of PD-VF on a family of environments: train, collect, embed, fit, evaluate, report.

    The same command on the same folder goes on where it stopped.
    """

    config: Annotated[Config, tyro.conf.arg(name="")]
    out: Path = Path("runs/latest")
    """Folder of the run; made if it is not there."""
    preset: str = "quick"
    """Where the defaults of the options below come from: smoke, quick, paper or best."""
    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class CompareArguments(RunArguments):
    """Every baseline and ablation beside PD-VF, on equal terms: trains what is missing, plays, reports.

    The phases of PD-VF come first where they are missing. The same command on the same folder goes on where it
    stopped; methods that are finished are left alone.
    """

    methods: tuple[str, ...] = ()
    """Methods to compare, as `pdvf list` names them, or Python files (docs/add_a_method.md); all for none."""


@dataclass(frozen=True)
class SweepArguments(RunArguments):
    """Tries every combination of values of some options, judged in training environments that are held out.

    Before the options come a family, or the folder of a run whose configuration is to be searched around, with
    `--family TARGET` where that run's family is your own. Give `--option NAME VALUE VALUE ...` as often as needed. The
    same command goes on where it stopped.
    """

    grid: tuple[str, ...] = ()
    """Options to search over the values of the paper's appendix C, such as ppo.learning_rate."""
    method: str = "pd-vf"
    """The method that is trained and judged."""
    held_out: tuple[int, ...] = ()
    """Numbers of the training environments to judge in; a fifth from the middle of the list for none."""
    dry_run: bool = False
    """Say what it would take, and stop."""


@dataclass(frozen=True)
class PhaseArguments:
    """One phase of an existing run."""

    run: tyro.conf.Positional[Path]
    """Folder of the run, made by `pdvf init` or `pdvf run`."""
    family: str | None = None
    """The run's family, where it is your own: to open such a run is to run that code, so name it yourself."""
    quiet: bool = field(default=False)
    """Show no progress."""


@dataclass(frozen=True)
class CheckArguments:
    """Compares an engine with MuJoCo in C: errors of single steps, and mean returns of the same policies."""

    engine: Literal["mjx", "warp"] = "warp"
    """The engine to check."""
    run: Path | None = None
    """A run whose finished policies play; untrained ones if it is left out."""
    policies: int = 8
    """Untrained policies that play."""
    steps: int = 50
    """Steps along which single steps are compared."""
    episodes: int = 2
    """Episodes of each policy in each environment."""
    seed: int = 0
    """Seed of everything that is random."""
    out: Path | None = None
    """Write everything to this JSON file, too."""


@dataclass(frozen=True)
class FamilyArguments:
    """Says in a table whether a family is fit for training, before hours are spent on it."""

    engine: Literal["auto", "native", "host", "c", "mjx", "warp"] = "auto"
    """What simulates."""
    seed: int = 0
    """Seed of everything that is random."""


@dataclass(frozen=True)
class ExportArguments:
    """Writes a trained PD-VF as one file that adapts without JAX: `pdvf.deploy.runtime.Adapter.load(FILE)`."""

    run: tyro.conf.Positional[Path]
    """Folder of a run whose phase `fit` is finished."""
    file: tyro.conf.Positional[Path]
    """The file to write."""
    model: int = 0
    """Which of the run's models, from 0."""
    family: str | None = None
    """The run's family, where it is your own: to open such a run is to run that code, so name it yourself."""


@dataclass(frozen=True)
class DiagnoseArguments:
    """What holds a trained PD-VF back, measured in the training environments: five numbers and what each costs.

    Writes RUN/diagnosis.json and RUN/figures/diagnosis.png.
    """

    run: tyro.conf.Positional[Path]
    """Folder of a run whose phase `fit` is finished."""
    model: int = 0
    """Which of the run's models, from 0."""
    family: str | None = None
    """The run's family, where it is your own: to open such a run is to run that code, so name it yourself."""


@dataclass(frozen=True)
class ReproduceArguments:
    """The whole paper: all phases and every method for each family, then one page with all tables and figures.

    The same command goes on where it stopped; OUT/status.html says what is done and what is left.
    """

    families: tyro.conf.Positional[tuple[str, ...]] = ()
    """Families by name; all four for none."""
    preset: Literal["smoke", "quick", "paper", "best"] = "paper"
    """How large."""
    out: Path = Path("runs/reproduction")
    """Folder of all runs; made if it is not there."""
    methods: tuple[str, ...] = ()
    """Methods to compare, as `pdvf list` names them; all for none."""
    workers: int = 1
    """Parts made at the same time, each by a process of its own: one leaves most of a GPU idle. With NVIDIA's MPS
    running (`nvidia-cuda-mps-control -d`) they truly share it."""
    seed: int = 0
    """Seed of everything that is random."""
    quiet: bool = False
    """Show no progress."""


@dataclass(frozen=True)
class PretrainedArguments:
    """Plays a model that `pdvf export` wrote in the test environments of its family."""

    pretrained: str
    """The file, or the name of a model that comes with the package."""
    episodes: int = 10
    """Episodes in each test environment."""
    seed: int = 0
    """Seed of the first episode's start."""
