"""A computation as a sequence of stages, pure: it knows no files, and can be stopped between any two stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

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

    def advance(self, state: State, stage: int, /) -> tuple[State, Mapping[str, Any]]:
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
