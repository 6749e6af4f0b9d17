"""What simulates: one pure batched `step` behind one protocol, whatever computes it."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.families.base import Family, Outcome, Physics, State, TaskFamily


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

    def state_vector(self, states: State) -> Array:
        """The numbers [n, m] of states that the dynamics change."""
        ...

    def add_to_state(self, states: State, change: Array) -> State:
        """States whose numbers are changed by [n, m]."""
        ...

    def task_states(self, states: State) -> State:
        """States [n, ...] as the family's task takes them."""
        ...


def settable(engine: Any) -> bool:
    """Whether an engine is a `SettableEngine` for its family."""
    return isinstance(engine.family, TaskFamily) and hasattr(engine, "add_to_state")


def observe(engine: Any, states: State) -> Array:
    """Observations [n, o] of a `SettableEngine`'s states."""
    return jax.vmap(engine.family.observe)(engine.task_states(states))


def outcome(engine: Any, before: State, actions: Array, after: State) -> Outcome:
    """What the task of a `SettableEngine`'s family makes of steps from some states to others with actions [n, a]."""
    family, steps = engine.family, (engine.task_states(before), engine.task_states(after), actions)
    return Outcome(observe(engine, after), jax.vmap(family.reward)(*steps), jax.vmap(family.terminated)(*steps))


def add_to_physics(physics: Physics, change: Array) -> Physics:
    """Positions and velocities [n, ...] changed by [n, nq + nv]."""
    qpos, qvel = jnp.split(change, [physics.qpos.shape[-1]], axis=-1)
    return Physics(physics.qpos + qpos, physics.qvel + qvel)
