"""Engine for families whose physics is JAX code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

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

    def state_vector(self, states: State) -> Array:
        """The real numbers [n, m] of states."""
        return jax.vmap(lambda state: ravel_pytree(_reals(state))[0])(states)

    def add_to_state(self, states: State, change: Array) -> State:
        """States whose real numbers are changed by [n, m]."""

        def add(state: State, change: Array) -> State:
            vector, restore = ravel_pytree(_reals(state))
            return jax.tree.map(
                lambda old, new: old if new is None else new,
                state,
                restore(vector + change),
                is_leaf=lambda x: x is None,
            )

        return jax.vmap(add)(states, change)

    def task_states(self, states: State) -> State:
        """States as they are."""
        return states


def _reals(state: State) -> Any:
    """The state with None in place of everything that is no real number."""
    return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jnp.floating) else None, state)
