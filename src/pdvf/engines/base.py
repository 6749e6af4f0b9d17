"""What simulates: one pure batched `step` behind one protocol, whatever computes it."""

from __future__ import annotations

from typing import Protocol

from pdvf.core.arrays import Array
from pdvf.families.base import Family, Outcome, State


class Engine(Protocol):
    """Simulates environments of one family. Arguments and results have a leading batch axis [n, ...].

    `reset` and `step` are pure functions of their arguments and run inside `jit`, `vmap` and `scan`.
    """

    @property
    def family(self) -> Family:
        """The family it simulates."""
        ...

    def reset(self, keys: Array, contexts: Array) -> tuple[State, Array]:
        """States and observations [n, o] at the start of an episode, for keys [n] and contexts [n, c]."""
        ...

    def step(self, contexts: Array, states: State, actions: Array) -> tuple[State, Outcome]:
        """States and outcomes after actions [n, a]."""
        ...
