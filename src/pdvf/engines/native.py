"""Engine for families whose physics is JAX code."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from pdvf.core.arrays import Array
from pdvf.families.base import NativeFamily, Outcome, State


@dataclass(frozen=True)
class NativeEngine:
    """Batches a family's own JAX transition."""

    family: NativeFamily

    def reset(self, keys: Array, contexts: Array) -> tuple[State, Array]:
        """States and observations [n, o] at the start of an episode."""
        states = jax.vmap(self.family.initial_state)(keys, contexts)
        return states, jax.vmap(self.family.observe)(states)

    def step(self, contexts: Array, states: State, actions: Array) -> tuple[State, Outcome]:
        """States and outcomes after actions [n, a]."""
        states, rewards, terminated = jax.vmap(self.family.transition)(contexts, states, actions)
        return states, Outcome(jax.vmap(self.family.observe)(states), rewards, terminated)

    def task_states(self, states: State) -> State:
        """States as they are."""
        return states

    def from_task_states(self, states: State) -> State:
        """The same."""
        return states
