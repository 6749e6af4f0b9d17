"""Methods on one run: which there are, how each is evaluated, and the table of all returns.

RUN/artefacts/agent-NAME      the trained method, one agent a seed
RUN/artefacts/returns-NAME    its returns, one array [S, E, J] for each protocol
RUN/returns.csv               the returns of every method that has played
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import ConfigError
from pdvf.core.arrays import Array
from pdvf.core.devices import shard_over_devices
from pdvf.core.staged import OneStage
from pdvf.experiment.files import to_csv
from pdvf.experiment.pytrees import require_axes
from pdvf.experiment.store import RunStore
from pdvf.families.loading import guarded, load_module
from pdvf.methods import METHODS, Method, methods_in, play_everywhere
from pdvf.methods.base import RETURNS, returns_artefact
from pdvf.paper.pipeline import AXES, Problem
from pdvf.paper.problem import Stream

COLUMNS = ("family", "split", "environment", "method", "protocol", "seed", "episode", "return")


def find_methods(words: Sequence[str]) -> list[Method]:
    """Methods by name or from a Python file, all of them for no words."""
    found = (_from_file(word) if word.endswith(".py") else [method_named(word)] for word in words or METHODS)
    return [method for methods in found for method in methods]


def method_named(name: str) -> Method:
    """One of the methods that there are."""
    if name not in METHODS:
        raise ConfigError(
            f"unknown method {name!r}, expected one of: {', '.join(METHODS)}; or a Python file with a Method in it"
        )
    return METHODS[name]


def _from_file(path: str) -> list[Method]:
    """The methods that a Python file makes."""
    module = guarded(f"file of methods {path}", lambda: load_module(path))
    found = [method for method in methods_in(module) if method.name not in METHODS]
    if not found:
        raise ConfigError(f"{path} makes no Method of its own: see docs/add_a_method.md")
    return found


def method_key(problem: Problem, method: Method) -> Array:
    """A method's own key: it does not depend on which other methods are compared."""
    return jax.random.fold_in(problem.key(Stream.METHODS), zlib.crc32(method.name.encode()))


def evaluate(problem: Problem, method: Method, agents: Any) -> OneStage:
    """The one evaluation: a method's agents [S, ...] where the problem judges them, all from the same starts."""
    episodes, train = problem.config.evaluate.episodes, problem.contexts.shape[0]

    def returns(key: Array, agents: Any) -> dict[str, Array]:
        other = None if method.mirror is None else method.mirror(agents)
        return play_everywhere(problem.engine, agents, problem.judged, episodes, method.privileged, key, other)

    def play() -> tuple[dict[str, Any], dict[str, Array]]:
        played = shard_over_devices(returns)(problem.key(Stream.COMPARISON), agents)
        honest = played["honest"]
        metrics = {"train": jnp.mean(honest[:, :train]), "test": jnp.mean(honest[:, train:])}
        return {returns_artefact(method.name): played}, metrics

    return OneStage(returns_artefact(method.name), play)


def method_rows(store: RunStore, problem: Problem) -> Iterator[tuple[Any, ...]]:
    """Every return in a run's folder under `COLUMNS`, one episode a row."""
    family, seed = problem.engine.family, problem.config.seed
    numbers = family.train(seed).numbers + family.test(seed).numbers
    train = problem.contexts.shape[0]
    for name in store.names(RETURNS):
        where = f"artefact {name!r} in {store.folder}"
        for protocol, returns in sorted(store.load_arrays(name).items()):
            require_axes(where, {protocol: returns}, {protocol: AXES["returns"]}, E=len(numbers))
            for (s, e, j), value in np.ndenumerate(returns):
                split = "train" if e < train else "test"
                yield family.name, split, numbers[e], name.removeprefix(RETURNS), protocol, s, j, float(value)


def write_returns(store: RunStore, problem: Problem) -> None:
    """Writes returns.csv."""
    rows = ((*place, f"{value:.6g}") for *place, value in method_rows(store, problem))
    store.write_text("returns.csv", to_csv([COLUMNS, *rows]))
