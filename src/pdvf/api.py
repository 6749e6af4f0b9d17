"""What `import pdvf` offers to scripts and notebooks.

run = pdvf.train("spaceship", preset="quick", out="runs/a")
print(run.compare("ppo-all", "nn"))
adapter = run.adapter()
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pdvf import __version__
from pdvf.config import ConfigError, from_dict, to_dict, with_options
from pdvf.config.presets import preset as make_preset
from pdvf.deploy.export import UNSTATED, export, make_card, require_exportable
from pdvf.deploy.pretrained import find
from pdvf.deploy.runtime import Adapter
from pdvf.experiment.comparison import find_methods
from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Listener, tell_all
from pdvf.experiment.executors import EXECUTORS
from pdvf.experiment.files import write_file
from pdvf.experiment.plan import TABLE, phases_for, plan, problem_of, recipes_for
from pdvf.experiment.provenance import use_recorded_cores
from pdvf.experiment.store import RunStore
from pdvf.families import loading
from pdvf.methods import Method, agent_artefact
from pdvf.methods.pdvf import ValueFunction
from pdvf.paper.adapter import Adapter as Model
from pdvf.paper.pipeline import ArtefactShapes, Problem, artefact_shapes
from pdvf.reports.data import read_returns

LEARNING = ("train", "collect", "embed", "fit")


def train(
    family: Any,
    preset: str = "quick",
    out: str | Path = "runs/latest",
    *,
    seed: int = 0,
    budget: str = "paper",
    options: Mapping[str, Any] | None = None,
    on_stage: Listener | Sequence[Listener] = (),
) -> Run:
    """Trains PD-VF on a family of environments, or goes on where an earlier call was stopped.

    Args:
        family: the name of a built-in family ("ant-wind"), a target ("package.module:object", "file.py:object") or a
            family object, such as a `pdvf.families.GymFamily`.
        preset: "smoke", "quick", "paper" or "best".
        out: folder of the run, made if it is not there.
        seed: of everything that is random.
        budget: of methods that join: "paper" for the paper's steps a policy, "equal" for as many as all of PD-VF's.
        options: options that differ from the preset's, by dotted name: {"ppo.steps": 1_000_000}.
        on_stage: is called with an `Event` whenever a task begins, has finished a stage, or ends; one function or
            several, such as those of `pdvf.callbacks`.

    Returns:
        The trained run.

    Examples:
        >>> run = pdvf.train("spaceship", preset="smoke", out="runs/smoke")
        >>> run.evaluate()["pd-vf"]
    """
    use_recorded_cores(out)
    target = family if isinstance(family, str) else loading.give(family)
    config = with_options(replace(make_preset(target, preset, budget), seed=seed), options or {})
    problem = Problem(config)
    _ = problem.engine  # is made, or raises, before the folder is
    run = Run(RunStore.create(out, to_dict(config), f"pdvf.train({target!r}, {preset!r}, seed={seed})"), on_stage)
    return run.execute(LEARNING)


def open_run(folder: str | Path, family: Any = None, on_stage: Listener | Sequence[Listener] = ()) -> Run:
    """A run that was trained before.

    Args:
        folder: the run's folder.
        family: needed for a family of your own, since opening such a run imports its code: the target or the object.
        on_stage: as for `train`.

    Returns:
        The run, with all that is there.
    """
    use_recorded_cores(folder)
    named = family if family is None or isinstance(family, str) else loading.give(family)
    return Run(RunStore.open(folder, family=named), on_stage)


def load(file: str | Path, **options: Any) -> Adapter:
    """A model that adapts with NumPy alone: a file made by `Run.export`, or one that comes with the package.

    It acts as PD-VF or as PD-VF-plus, whichever the file holds.

    Args:
        file: a path, or the name of a model that comes with the package, such as "ant-wind".
        options: as for `Adapter.load`.

    Returns:
        An adapter: `reset(observation)` at the start of an episode, then `act(observation)` at every step.

    Examples:
        >>> adapter = pdvf.load("ant-wind")
        >>> adapter.reset(observation)  # [27]
        >>> action = adapter.act(observation)  # [8]
    """
    return Adapter.load(find(str(file)), **options)


@dataclass(frozen=True)
class Run:
    """A run's folder with what can be done with it; made by `train` or `open_run`."""

    store: RunStore
    on_stage: Listener | Sequence[Listener] = ()

    @property
    def folder(self) -> Path:
        """Where everything is."""
        return self.store.folder

    @cached_property
    def problem(self) -> Problem:
        """Configuration, family and engine, with synthesised environments if there are any."""
        return problem_of(self.store, Problem(from_dict(self.store.config)))

    def execute(self, phases: tuple[str, ...], methods: tuple[str, ...] | None = None) -> Run:
        """Makes what is missing of some phases and methods, one after the other, and returns this run."""
        chosen = [] if methods is None else find_methods(methods)
        listener = self.on_stage if callable(self.on_stage) else tell_all(self.on_stage)
        EXECUTORS["serial"](plan(self.store, Problem(from_dict(self.store.config)), chosen, phases), listener)
        return self

    def evaluate(self) -> dict[str, float]:
        """Plays PD-VF, NN and PPOenv, one episode at a time; mean test return by method."""
        return self.execute(("evaluate", TABLE)).returns()

    def compare(self, *methods: str) -> dict[str, float]:
        """Trains and plays methods beside PD-VF, and what they rest on.

        Args:
            methods: names that `pdvf list` shows, or Python files with one; all for none.

        Returns:
            Mean test return of every method that has played so far.
        """
        return self.execute((*phases_for(find_methods(methods)), TABLE), methods).returns()

    def returns(self) -> dict[str, float]:
        """Mean return in the test environments by method, of those that have played."""
        groups = read_returns(self.store)
        return {g.method: g.summary.mean.value for g in groups if (g.split, g.protocol) == ("test", "honest")}

    def report(self) -> Path:
        """Writes figures and report.html, and returns its path."""
        self.execute(("evaluate", TABLE, "report"))
        return self.folder / "report.html"

    @property
    def policies(self) -> Any:
        """The policies of phase 1 [K, E, seeds, ...], the finished ones last."""
        return self.store.load("policies", artefact_shapes(self.problem)["policies"])

    def model(self, number: int = 0) -> Model:
        """One of the run's trained PD-VF models (its number from 0), in JAX."""
        return self._one_of("adapter", number, f"`pdvf fit {self.folder}`")

    def agent(self, method: str = "pd-vf", number: int = 0) -> Any:
        """One of the run's trained agents of a method (`pdvf list` names them; or a Python file), in JAX."""
        return self._agent(find_methods((method,))[0], number)

    def _agent(self, method: Method, number: int) -> Any:
        if method.name == "pd-vf":  # there as soon as it is trained
            return ValueFunction(self.model(number), jnp.ones(()))
        maker = f"`pdvf compare` with `--methods {method.name}`"
        return self._one_of(agent_artefact(method.name), number, maker, [method])

    def _one_of(self, artefact: str, number: int, maker: str, methods: Sequence[Method] = ()) -> Any:
        if not self.store.has(artefact):
            raise RunError(f"{self.folder} has no {artefact} yet: run {maker} first")
        found = self.store.load(artefact, ArtefactShapes(self.problem, recipes_for(methods))[artefact])
        models = jax.tree.leaves(found)[0].shape[0]
        if not 0 <= number < models:
            raise ConfigError(f"model is {number}, expected a number from 0 to {models - 1}: the run has {models}")
        return jax.tree.map(lambda x: x[number], found)

    def export(self, file: str | Path, model: int = 0, method: str = "pd-vf", licence: str = UNSTATED) -> Path:
        """Writes one of a method's models as a file, and returns its path.

        Args:
            file: the file; one that ends in .onnx is an ONNX graph, any other a file for `pdvf.load`.
            model: which of the method's models, from 0.
            method: any that `pdvf list` names except those that are told the hidden context; or a Python file.
            licence: what the model card says of the licence.
        """
        chosen, path = find_methods((method,))[0], Path(file)
        require_exportable(chosen)
        agent, family = self._agent(chosen, model), self.problem.engine.family
        card = make_card(self.store, self.problem, chosen, model, licence)
        about = {
            "method": chosen.name,
            "model": model,
            "seed": self.problem.config.seed,
            "pdvf": __version__,
            "measured": {str(row["environment"]): row["mean"] for row in card["results"][:-1]},
            "card": card,
        }
        if path.suffix == ".onnx":
            from pdvf.deploy.onnx_graph import export_onnx  # the extra `export`

            write_file(path, export_onnx(agent, family, about))
        else:
            write_file(path, export(agent, family, about))
        return path

    def adapter(self, model: int = 0, method: str = "pd-vf") -> Adapter:
        """One of the models, ready to act: `reset` at the start of an episode, then `act` at every step.

        Args:
            model: which of the method's models, from 0.
            method: as for `export`, where the model leaves as a file for NumPy.
        """
        with tempfile.TemporaryDirectory() as folder:
            return Adapter.load(self.export(Path(folder) / "model.pdvf", model, method))
