"""Engines around an engine: episodes in environments drawn at random, and observations with more in them.

PPO trains one policy for one context. Seen through `MultiTask` its "context" is a distribution over environments, so
the same PPO trains one policy for many; features of the environment, or what happened so far, join the observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Box
from pdvf.core.objective import objective_of
from pdvf.engines.base import Engine
from pdvf.families.base import Family, Outcome, State


def of_inner(name: str) -> Any:
    """An attribute or a method that a wrapper has from what it wraps."""
    return property(lambda wrapped: getattr(wrapped.inner, name))


@dataclass(frozen=True)
class WrappedFamily:
    """A family seen through a wrapper: everything is its own that a subclass does not change."""

    inner: Any  # Family
    name = of_inner("name")
    context_names = of_inner("context_names")
    observation = of_inner("observation")
    action = of_inner("action")
    horizon = of_inner("horizon")
    probe_steps = of_inner("probe_steps")
    train = of_inner("train")
    test = of_inner("test")
    objective = property(lambda wrapped: objective_of(wrapped.inner))


@dataclass(frozen=True)
class ExtendedObservation(WrappedFamily):
    """A family whose observation has `extra` more numbers, between -1 and 1 where they are bounded."""

    extra: Box

    @property
    def observation(self) -> Box:
        """The family's observation, then the extra numbers."""
        own = self.inner.observation
        return Box(np.concatenate([own.low, self.extra.low]), np.concatenate([own.high, self.extra.high]))


class MultiTaskState(NamedTuple):
    """n episodes, each in an environment of its own."""

    context: Array  # [n, c]
    feature: Array  # [n, f]
    inner: State


@dataclass(frozen=True)
class MultiTask:
    """Draws an environment at every reset and appends a feature of it to every observation.

    Where an engine takes contexts [n, c], this one takes the probabilities [n, E] of its environments. Of the B
    features of an environment an episode gets one at random; f may be 0.
    """

    inner: Engine
    contexts: Array  # [E, c]
    features: Array  # [E, B, f]

    @property
    def family(self) -> Family:
        """The inner family, with the feature in its observation."""
        return ExtendedObservation(self.inner.family, Box.symmetric(self.features.shape[-1], 1.0))

    def reset(self, keys: Array, contexts: Array) -> tuple[MultiTaskState, Array]:
        """Episodes in environments drawn with probabilities `contexts` [n, E]."""

        def draw(key: Array, weights: Array) -> tuple[Array, Array, Array]:
            chosen_key, feature_key, reset_key = jax.random.split(key, 3)
            chosen = jax.random.categorical(chosen_key, jnp.log(weights))
            feature = jax.random.randint(feature_key, (), 0, self.features.shape[1])
            return self.contexts[chosen], self.features[chosen, feature], reset_key

        context, feature, reset_keys = jax.vmap(draw)(keys, contexts)
        inner, observation = self.inner.reset(reset_keys, context)
        return MultiTaskState(context, feature, inner), jnp.concatenate([observation, feature], axis=-1)

    def step(self, contexts: Array, states: MultiTaskState, actions: Array) -> tuple[MultiTaskState, Outcome]:
        """One step of each episode in the environment it is in."""
        inner, outcome = self.inner.step(states.context, states.inner, actions)
        wide = jnp.concatenate([outcome.observation, states.feature], axis=-1)
        return states._replace(inner=inner), outcome._replace(observation=wide)


class Memory(NamedTuple):
    """n episodes and their first N_d transitions."""

    inner: State
    observation: Array  # [n, o] the one that the next action answers
    rows: Array  # [n, N_d, 2 o + a + 2]
    time: Array  # [n]


@dataclass(frozen=True)
class TransitionHistory:
    """Appends the first N_d transitions of the episode to every observation, zeros until they are made.

    A row of a transition is s, a scaled, r, s', and 1 once it was made.
    """

    inner: Engine

    @property
    def family(self) -> Family:
        """The inner family, with the transitions in its observation."""
        size = self.inner.family.probe_steps * row_size(self.inner.family)
        return ExtendedObservation(self.inner.family, Box.symmetric(size))

    def reset(self, keys: Array, contexts: Array) -> tuple[Memory, Array]:
        """Episodes in which nothing happened yet."""
        inner, observation = self.inner.reset(keys, contexts)
        n, family = observation.shape[0], self.inner.family
        memory = Memory(
            inner,
            observation,
            jnp.zeros((n, family.probe_steps, row_size(family))),
            jnp.zeros(n, jnp.int32),
        )
        return memory, _wide(observation, memory.rows)

    def step(self, contexts: Array, states: Memory, actions: Array) -> tuple[Memory, Outcome]:
        """One step; the first N_d are kept."""
        inner, outcome = self.inner.step(contexts, states.inner, actions)
        box = self.inner.family.action
        scaled = (actions - (box.high + box.low) / 2) / ((box.high - box.low) / 2)
        one = jnp.ones((actions.shape[0], 1))
        row = jnp.concatenate([states.observation, scaled, outcome.reward[:, None], outcome.observation, one], axis=-1)
        now = jnp.arange(self.inner.family.probe_steps)[None, :, None] == states.time[:, None, None]
        rows = jnp.where(now, row[:, None], states.rows)
        memory = Memory(inner, outcome.observation, rows, states.time + 1)
        return memory, outcome._replace(observation=_wide(outcome.observation, rows))


def row_size(family: Family) -> int:
    """Numbers of one transition as `TransitionHistory` keeps it."""
    return 2 * family.observation.size + family.action.size + 2


def _wide(observation: Array, rows: Array) -> Array:
    return jnp.concatenate([observation, rows.reshape(rows.shape[0], -1)], axis=-1)
