"""Methods compared on one run: each is trained if it is missing, plays, and adds its returns to the table.

    RUN/artefacts/agent-NAME      the trained method, one agent a seed
    RUN/artefacts/returns-NAME    its returns, one array [S, E, J] for each protocol
    RUN/returns.csv               the returns of every method that has played

A method that is there is left alone, so a comparison that was stopped goes on with what is missing.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import ConfigError
from pdvf.core.arrays import Array
from pdvf.core.devices import shard_over_devices
from pdvf.experiment.progress import Progress
from pdvf.experiment.pytrees import require_axes
from pdvf.experiment.stages import finished, run_phase
from pdvf.experiment.store import RunStore
from pdvf.methods import METHODS, Method, agent_artefact, play_everywhere
from pdvf.paper.pipeline import AXES, Problem, Row, artefact_shapes, return_rows
from pdvf.paper.problem import Stream

COLUMNS = ("family", "split", "environment", "method", "protocol", "seed", "episode", "return")


def find_methods(words: Sequence[str | Method]) -> list[Method]:
    """Methods by name or from a Python file, all of them for no words; those that others need come first."""
    found: list[Method] = []
    for word in words or METHODS:
        if isinstance(word, Method):
            found.append(word)
        else:
            found += _from_file(Path(word)) if word.endswith(".py") else [_named(word)]
    return with_needed(found, None)


def with_needed(methods: Sequence[Method], problem: Problem | None) -> list[Method]:
    """Methods, before each of them those that it needs; with the options of a problem, if there is one."""
    found: dict[str, Method] = {}

    def add(method: Method) -> None:
        for other in method.others(problem):
            add(_named(other))
        found.setdefault(method.name, method)

    for method in methods:
        add(method)
    return list(found.values())


def suited(methods: Sequence[Method], problem: Problem, asked: bool) -> list[Method]:
    """Methods that can be used for a problem; one that was asked for and cannot is an error."""
    reasons = {method.name: method.unsuited(problem) for method in methods}
    for name, reason in reasons.items():
        if asked and reason:
            raise ConfigError(f"the method {name!r} cannot be used: {reason}; mend that or leave it out of --methods")
    return [method for method in methods if not reasons[method.name]]


def _named(name: str) -> Method:
    if name not in METHODS:
        raise ConfigError(
            f"unknown method {name!r}, expected one of: {', '.join(METHODS)}; or a Python file with a Method in it"
        )
    return METHODS[name]


def _from_file(path: Path) -> list[Method]:
    """The methods that a Python file makes."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not there, expected a Python file with a pdvf.methods.Method: check the path")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} could not be run ({type(error).__name__}: {error}): mend it") from error
    found = [value for value in vars(module).values() if isinstance(value, Method) and value.name not in METHODS]
    if not found:
        raise ConfigError(f"{path} makes no Method of its own: see docs/add_a_method.md")
    return found


def compare(store: RunStore, problem: Problem, methods: Sequence[Method], progress: Progress) -> None:
    """Trains and plays every method that is missing; the phases of PD-VF have left their artefacts."""
    shapes = artefact_shapes(problem)
    for method in with_needed(methods, problem):
        train_method(store, problem, method, shapes, progress)
        play_method(store, problem, method, problem.everywhere, shapes, progress)


def train_method(store: RunStore, problem: Problem, method: Method, shapes: dict[str, Any], progress: Progress) -> None:
    """Makes the method's agents, unless they are there, and adds their shapes."""
    name, needs = agent_artefact(method.name), (*method.needs, *method.also(problem))
    shapes |= jax.eval_shape(
        lambda inputs: _agents(problem, method, inputs), {needed: shapes[needed] for needed in needs}
    )
    if finished(store, method.name, (name,)):
        return
    inputs = {needed: store.load(needed, shapes[needed]) for needed in needs}
    run_phase(store, method.train(problem, inputs, method_key(problem, method)), (name,), needs, progress)


def _agents(problem: Problem, method: Method, inputs: dict[str, Any]) -> dict[str, Any]:
    """What a training leaves, without the work in between."""
    training = method.train(problem, inputs, method_key(problem, method))
    state = training.start()
    return training.finish(training.advance(state, 0)[0] if training.stages == 1 else state)


def play_method(
    store: RunStore, problem: Problem, method: Method, contexts: Any, shapes: dict[str, Any], progress: Progress
) -> None:
    """Makes the method's returns in contexts [E, c], unless they are there."""
    name, agent = f"returns-{method.name}", agent_artefact(method.name)
    if finished(store, name, (name,)):
        return
    agents = store.load(agent, shapes[agent])
    run_phase(store, Playing(problem, method, agents, contexts), (name,), (agent,), progress)


def method_key(problem: Problem, method: Method) -> Array:
    """A method's own key: it does not depend on which other methods are compared."""
    return jax.random.fold_in(problem.key(Stream.METHODS), zlib.crc32(method.name.encode()))


@dataclass(frozen=True)
class Playing:
    """A method's agents [S, ...] in contexts [E, c], those for training first, all from the same starts."""

    problem: Problem
    method: Method
    agents: Any
    contexts: Any
    stages = 1

    @property
    def name(self) -> str:
        """Also of the artefact."""
        return f"returns-{self.method.name}"

    def start(self) -> tuple[()]:
        """Nothing is carried over."""
        return ()

    def advance(self, state: tuple[()], stage: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Plays everything."""
        del state, stage
        problem, method = self.problem, self.method
        episodes = problem.config.evaluate.episodes

        def returns(key: Array, agents: Any) -> dict[str, Array]:
            other = None if method.mirror is None else method.mirror(agents)
            return play_everywhere(problem.engine, agents, self.contexts, episodes, method.privileged, key, other)

        played = shard_over_devices(returns)(problem.key(Stream.COMPARISON), self.agents)
        train = problem.contexts.shape[0]
        honest = played["honest"]
        return played, {"train": jnp.mean(honest[:, :train]), "test": jnp.mean(honest[:, train:])}

    def finish(self, state: dict[str, Array]) -> dict[str, dict[str, Array]]:
        """The returns by protocol."""
        return {self.name: state}


def method_rows(store: RunStore, problem: Problem) -> Iterator[Row]:
    """Every return in a run's folder: of methods that were compared, and of the phase `evaluate` for the others."""
    family, seed = problem.engine.family, problem.config.seed
    numbers = family.train(seed).numbers + family.test(seed).numbers
    train = problem.contexts.shape[0]
    compared = [name.removeprefix("returns-") for name in store.names("returns-")]
    for method in compared:
        where = f"artefact 'returns-{method}' in {store.folder}"
        for protocol, returns in sorted(store.load_arrays(f"returns-{method}").items()):
            require_axes(where, {protocol: returns}, {protocol: AXES["returns"]}, E=len(numbers))
            for (s, e, j), value in np.ndenumerate(returns):
                split = "train" if e < train else "test"
                yield Row(family.name, split, numbers[e], method, protocol, s, j, float(value))
    if store.has("evaluation"):
        evaluation = store.load_arrays("evaluation")
        needed = ("environments", "train_count", "returns", "peek", "nn", "ppo_env")
        require_axes(f"artefact 'evaluation' in {store.folder}", evaluation, AXES, needed, E=len(numbers))
        yield from (row for row in return_rows(problem.config, evaluation) if row.method not in compared)


def write_returns(store: RunStore, problem: Problem) -> None:
    """Writes returns.csv, one episode a line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in method_rows(store, problem):
        writer.writerow((*row[:-1], f"{row.value:.6g}"))
    store.write_text("returns.csv", text.getvalue())
