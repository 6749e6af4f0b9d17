"""What simulates: one pure batched `step` behind one protocol, whatever computes it."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from pdvf.core.arrays import Array
from pdvf.families.base import Family, Outcome, State, TaskFamily


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


class SettableEngine(Engine, Protocol):
    """An engine that can be put into any state, so that the same action can be tried in two environments.

    Its family must be a `TaskFamily`; `settable` tells.
    """

    def task_states(self, states: State) -> State:
        """States [n, ...] as the family's task takes them."""
        ...

    def from_task_states(self, states: State) -> State:
        """The engine's own states for those [n, ...] that the task takes, all else at rest."""
        ...


def settable(engine: Any) -> bool:
    """Whether an engine is a `SettableEngine` for its family."""
    return isinstance(engine.family, TaskFamily) and hasattr(engine, "from_task_states")


def observe(engine: Any, states: State) -> Array:
    """Observations [n, o] of a `SettableEngine`'s states."""
    return jax.vmap(engine.family.observe)(engine.task_states(states))


def outcome(engine: Any, before: State, actions: Array, after: State) -> Outcome:
    """What the task of a `SettableEngine`'s family makes of steps from some states to others with actions [n, a]."""
    family, steps = engine.family, (engine.task_states(before), engine.task_states(after), actions)
    return Outcome(observe(engine, after), jax.vmap(family.reward)(*steps), jax.vmap(family.terminated)(*steps))


def state_vector(engine: Any, states: State) -> Array:
    """The real numbers [n, m] of a `SettableEngine`'s states, which the dynamics change."""
    return jax.vmap(lambda state: ravel_pytree(_reals(state))[0])(engine.task_states(states))


def add_to_state(engine: Any, states: State, change: Array) -> State:
    """States of a `SettableEngine` whose real numbers are changed by [n, m]."""

    def add(state: State, change: Array) -> State:
        vector, restore = ravel_pytree(_reals(state))
        return jax.tree.map(
            lambda old, new: old if new is None else new, state, restore(vector + change), is_leaf=lambda x: x is None
        )

    return engine.from_task_states(jax.vmap(add)(engine.task_states(states), change))


def _reals(state: State) -> Any:
    """The state with None in place of everything that is no real number."""
    return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jnp.floating) else None, state)
