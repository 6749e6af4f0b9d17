"""A computation as a sequence of stages, pure: it knows no files, and can be stopped between any two stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

State = TypeVar("State")


class Staged(Protocol[State]):
    """Its state is one pytree of JAX arrays with everything that it needs to go on."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def stages(self) -> int:
        """How many stages it has."""
        ...

    def start(self) -> State:
        """The state before the first stage, also what a saved state is read into."""
        ...

    def advance(self, state: State, stage: int) -> tuple[State, Mapping[str, Any]]:
        """The state after stage `stage` (0, 1, ...) and that stage's metrics, numbers or arrays.

        A metric `steps`, the environment steps of the stage, is shown as a rate and counts for what a method costs;
        the first stage's has those of `start` in it, the last one's those of `finish`.
        """
        ...

    def finish(self, state: State, /) -> Mapping[str, Any]:
        """Artefacts by name, each a pytree of arrays."""
        ...


@dataclass(frozen=True)
class OneStage:
    """A computation of one stage: `make()` gives artefacts by name, and metrics."""

    name: str
    make: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]]
    stages = 1

    def start(self) -> Any:
        """Nothing is carried over."""
        return ()

    def advance(self, state: Any, stage: int) -> tuple[Any, Mapping[str, Any]]:
        """Makes everything."""
        return self.make()

    def finish(self, state: Any) -> Mapping[str, Any]:
        """What was made."""
        return state


@dataclass(frozen=True)
class Derived:
    """Another computation under a name of its own, which leaves something else from the same last state."""

    name: str
    inner: Staged[Any]
    leave: Callable[[Any], Mapping[str, Any]]

    @property
    def stages(self) -> int:
        """Those of the other."""
        return self.inner.stages

    def start(self) -> Any:
        """The first state of the other."""
        return self.inner.start()

    def advance(self, state: Any, stage: int) -> tuple[Any, Mapping[str, Any]]:
        """A stage of the other."""
        return self.inner.advance(state, stage)

    def finish(self, state: Any) -> Mapping[str, Any]:
        """What is made of the last state."""
        return self.leave(state)


class Ensemble(Staged[State], Protocol):
    """One whose state has a leading axis of rows that learn independently, such as policies.

    So it can be cut into parts that are made anywhere. Rounding may depend on how many rows are computed together.
    """

    @property
    def rows(self) -> int:
        """How many."""
        ...

    def steps(self, stage: int) -> int:
        """Environment steps of a stage."""
        ...

    def no_metrics(self) -> Any:
        """Zeros in place of the metrics of a stage [rows, ...]."""
        ...

    def learn(self, state: State, stage: int, rows: slice = slice(None)) -> tuple[State, Any]:
        """As `advance` for the state of some rows, with metrics [rows, ...]."""
        ...

    def summary(self, metrics: Any, /) -> Mapping[str, Any]:
        """From metrics of all rows to those of a stage, but for the steps."""
        ...


@dataclass(frozen=True)
class Part:
    """Some rows of an ensemble; it leaves their state [rows, ...] and metrics [stages, rows, ...] under its name."""

    name: str
    ensemble: Ensemble[Any]
    first: int
    end: int

    @property
    def stages(self) -> int:
        """Those of the whole."""
        return self.ensemble.stages

    def start(self) -> tuple[Any, Any]:
        """The state of these rows and no metrics."""
        whole = self.ensemble.start(), self.ensemble.no_metrics()
        rows, blank = jax.tree.map(lambda x: x[self.first : self.end], whole)
        return rows, jax.tree.map(lambda x: jnp.zeros((self.stages, *x.shape), x.dtype), blank)

    def advance(self, state: tuple[Any, Any], stage: int) -> tuple[tuple[Any, Any], Mapping[str, Any]]:
        """A stage of these rows."""
        rows, kept = state
        rows, metrics = self.ensemble.learn(rows, stage, slice(self.first, self.end))
        kept = jax.tree.map(lambda all_, new: all_.at[stage].set(new), kept, metrics)
        return (rows, kept), {"steps": self.ensemble.steps(stage) * (self.end - self.first) / self.ensemble.rows}

    def finish(self, state: tuple[Any, Any]) -> Mapping[str, Any]:
        """What `Joined` takes."""
        return {self.name: state}


@dataclass(frozen=True)
class Joined:
    """An ensemble whose parts are made: it leaves what the whole would, with the same metrics but for the steps."""

    ensemble: Ensemble[Any]
    parts: Sequence[tuple[Any, Any]]

    @property
    def name(self) -> str:
        """That of the whole."""
        return self.ensemble.name

    @property
    def stages(self) -> int:
        """Those of the whole."""
        return self.ensemble.stages

    def start(self) -> Any:
        """Nothing is carried over."""
        return ()

    def advance(self, state: Any, stage: int) -> tuple[Any, Mapping[str, Any]]:
        """The metrics of a stage; its environment steps are counted where they were made."""
        metrics = jax.tree.map(
            lambda *x: jnp.concatenate([part[stage] for part in x]), *(kept for _, kept in self.parts)
        )
        return state, self.ensemble.summary(metrics)

    def finish(self, state: Any) -> Mapping[str, Any]:
        """What the whole leaves."""
        return self.ensemble.finish(jax.tree.map(lambda *x: jnp.concatenate(x), *(rows for rows, _ in self.parts)))
