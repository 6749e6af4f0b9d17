"""What `import pdvf` offers to scripts and notebooks.

run = pdvf.train("spaceship", preset="quick", out="runs/a")
print(run.compare("ppo-all", "nn"))
adapter = run.adapter()
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from pdvf import __version__
from pdvf.config import ConfigError, from_dict, to_dict, with_options
from pdvf.config.presets import preset as make_preset
from pdvf.core.devices import use_all_cores
from pdvf.deploy.export import export, measured
from pdvf.deploy.pretrained import find
from pdvf.deploy.runtime import Adapter
from pdvf.experiment.comparison import find_methods
from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Listener
from pdvf.experiment.executors import EXECUTORS
from pdvf.experiment.files import write_file
from pdvf.experiment.plan import TABLE, plan, recipes_for
from pdvf.experiment.progress import ignore
from pdvf.experiment.provenance import recorded_cores
from pdvf.experiment.store import RunStore
from pdvf.families import loading
from pdvf.methods import METHODS, agent_artefact
from pdvf.methods.adaptive import NAME as PLUS
from pdvf.methods.adaptive import BeliefAgent
from pdvf.paper.adapter import Adapter as Model
from pdvf.paper.pipeline import ArtefactShapes, Problem
from pdvf.reports.data import read_returns

LEARNING = ("train", "collect", "embed", "fit")


def train(
    family: Any,
    preset: str = "quick",
    out: str | Path = "runs/latest",
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    on_stage: Listener = ignore,
) -> Run:
    """Trains PD-VF on a family of environments, or goes on where an earlier call was stopped.

    Args:
        family: the name of a built-in family ("ant-wind"), a target ("package.module:object", "file.py:object") or a
            family object, such as a `pdvf.families.GymFamily`.
        preset: "smoke", "quick", "paper" or "best".
        out: folder of the run, made if it is not there.
        seed: of everything that is random.
        options: options that differ from the preset's, by dotted name: {"ppo.steps": 1_000_000}.
        on_stage: is called with an `Event` whenever a task begins, has finished a stage, or ends.

    Returns:
        The trained run.

    Examples:
        >>> run = pdvf.train("spaceship", preset="smoke", out="runs/smoke")
        >>> run.evaluate()["pd-vf"]
    """
    use_all_cores(recorded_cores(Path(out)))
    target = family if isinstance(family, str) else loading.give(family)
    config = with_options(replace(make_preset(target, preset), seed=seed), options or {})
    problem = Problem(config)
    assert problem.engine  # made, or it has raised: before the folder is
    run = Run(RunStore.create(out, to_dict(config), f"pdvf.train({target!r}, {preset!r}, seed={seed})"), on_stage)
    return run.execute(LEARNING)


def open_run(folder: str | Path, family: Any = None, on_stage: Listener = ignore) -> Run:
    """A run that was trained before.

    Args:
        folder: the run's folder.
        family: needed for a family of your own, since opening such a run imports its code: the target or the object.
        on_stage: as for `train`.
    """
    use_all_cores(recorded_cores(Path(folder)))
    named = family if family is None or isinstance(family, str) else loading.give(family)
    return Run(RunStore.open(folder, family=named), on_stage)


def load(file: str | Path, **options: Any) -> Adapter:
    """A model that adapts with NumPy alone: a file made by `Run.export`, or one that comes with the package.

    It acts as PD-VF or as PD-VF-plus, whichever the file holds.

    Args:
        file: a path, or "spaceship", "swimmer", "ant-wind" or another name that `pdvf list` shows.
        options: as for `Adapter.load`.
    """
    return Adapter.load(find(str(file)), **options)


@dataclass(frozen=True)
class Run:
    """A run's folder with what can be done with it; made by `train` or `open_run`."""

    store: RunStore
    on_stage: Listener = ignore

    @property
    def folder(self) -> Path:
        """Where everything is."""
        return self.store.folder

    @cached_property
    def problem(self) -> Problem:
        """Configuration, family and engine."""
        return Problem(from_dict(self.store.config))

    def execute(self, phases: tuple[str, ...], methods: tuple[str, ...] | None = None) -> Run:
        """Makes what is missing of some phases and methods, one after the other, and returns this run."""
        chosen = [] if methods is None else find_methods(methods)
        EXECUTORS["serial"](plan(self.store, self.problem, chosen, phases), self.on_stage)
        return self

    def evaluate(self) -> dict[str, float]:
        """Plays PD-VF, NN and PPOenv, one episode at a time; mean test return by method."""
        return self.execute(("evaluate", TABLE)).returns()

    def compare(self, *methods: str) -> dict[str, float]:
        """Trains and plays methods (`pdvf list` names them; all for none); mean test return of every method so far."""
        return self.execute(("evaluate", TABLE), methods).returns()

    def returns(self) -> dict[str, float]:
        """Mean return in the test environments by method, of those that have played."""
        groups = read_returns(self.store)
        return {g.method: g.summary.mean.value for g in groups if (g.split, g.protocol) == ("test", "honest")}

    def report(self) -> Path:
        """Writes figures and report.html, and returns its path."""
        self.execute(("evaluate", TABLE, "report"))
        return self.folder / "report.html"

    def model(self, number: int = 0) -> Model:
        """One of the run's trained PD-VF models, in JAX."""
        return self._one_of("adapter", self.problem.config.model_seeds, number, f"`pdvf fit {self.folder}`")

    def plus_model(self, number: int = 0) -> BeliefAgent:
        """One of the run's trained PD-VF-plus models, in JAX."""
        maker = f"`pdvf compare` with `--methods {PLUS}`"
        return self._one_of(agent_artefact(PLUS), self.problem.config.policy_seeds, number, maker)

    def _one_of(self, artefact: str, models: int, number: int, maker: str) -> Any:
        if not 0 <= number < models:
            raise ConfigError(f"model is {number}, expected a number from 0 to {models - 1}: the run has {models}")
        if not self.store.has(artefact):
            raise RunError(f"{self.folder} has no {artefact} yet: run {maker} first")
        shapes = ArtefactShapes(self.problem, recipes_for([METHODS[PLUS]]))
        return jax.tree.map(lambda x: x[number], self.store.load(artefact, shapes[artefact]))

    def export(self, file: str | Path, model: int = 0, method: str = "pd-vf") -> Path:
        """Writes one of the models of "pd-vf" or "pd-vf-plus" as a file for `pdvf.load`, and returns its path."""
        if method not in ("pd-vf", PLUS):
            raise ConfigError(f"method is {method!r}, expected one that can be exported: pd-vf, {PLUS}")
        found = self.plus_model(model) if method == PLUS else self.model(model)
        about = {"model": model, "seed": self.problem.config.seed, "pdvf": __version__}
        about["measured"] = measured(self.store, model, method)
        write_file(Path(file), export(found, self.problem.engine.family, about))
        return Path(file)

    def adapter(self, model: int = 0, method: str = "pd-vf") -> Adapter:
        """One of the models, ready to act: `reset` at the start of an episode, then `act` at every step.

        `method` is "pd-vf" or "pd-vf-plus".
        """
        with tempfile.TemporaryDirectory() as folder:
            return Adapter.load(self.export(Path(folder) / "model.pdvf", model, method))
