"""Episodes in real and synthesised environments, seen together with the belief about which one it is.

Every observation is followed by the features of the belief, from the prior at the first step on. So PPO trains a policy
on what it will meet in an environment that it has never seen. The code itself comes last. It is for the critic alone:
the value of an episode depends on the environment, and a belief that is still changing would look as if actions had
changed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pdvf.adapt.belief import LARGEST, Belief, update
from pdvf.adapt.model import DynamicsModel
from pdvf.core.arrays import Array, Box, Scaler
from pdvf.engines.base import Engine
from pdvf.engines.completion import Completed
from pdvf.engines.wrappers import ExtendedObservation
from pdvf.families.base import Family, Outcome, State

JITTER = 0.1
"""Synthesised codes are as far from the centre as a training code, give or take this share."""


class TaskState(NamedTuple):
    """n episodes."""

    environment: Array  # [n] training environment that is simulated
    context: Array  # [n, c + K] its context, and the offset of the code
    observation: Array  # [n, o]
    belief: Belief  # [n, ...]
    inner: State


@dataclass(frozen=True)
class BeliefTasks:
    """Draws an environment at every reset: one for training, or, with probability `share`, a synthesised one.

    Observations have o numbers of the inner family's, 2 K of the belief and K of the code.

    Where an engine takes contexts, this one takes anything: the draw does not depend on it.
    """

    inner: Engine
    contexts: Array  # [E, c] of the training environments
    model: DynamicsModel
    share: Array  # []

    @property
    def family(self) -> Family:
        """The inner family, with the features of the belief and the code in its observation."""
        return ExtendedObservation(self.inner.family, Box.symmetric(3 * self.model.code_size, LARGEST))

    @property
    def actor_sees(self) -> tuple[int, ...]:
        """Places in the observation: all but the code."""
        return tuple(range(self.inner.family.observation.size + 2 * self.model.code_size))

    @property
    def critic_sees(self) -> tuple[int, ...]:
        """Places in the observation: all but the belief."""
        inner, code = self.inner.family.observation.size, self.model.code_size
        return (*range(inner), *range(inner + 2 * code, inner + 3 * code))

    @cached_property
    def _engine(self) -> Engine:
        """With completion; `share` must be 0 where the inner engine cannot be put into any state."""
        return Completed(self.inner, self.model.effect, self.model.code_size)

    def reset(self, keys: Array, contexts: Array) -> tuple[TaskState, Array]:
        """Episodes at their start, with the prior as their belief."""
        environment, context, reset_keys = jax.vmap(self._draw)(keys)
        inner, observation = self._engine.reset(reset_keys, context)
        prior = Belief.prior(self.model.code_size)
        belief = jax.tree.map(lambda x: jnp.broadcast_to(x, (keys.shape[0], *x.shape)), prior)
        state = TaskState(environment, context, observation, belief, inner)
        return state, self._extended(state)

    def step(self, contexts: Array, states: TaskState, actions: Array) -> tuple[TaskState, Outcome]:
        """One step of each episode; the belief takes it in."""
        inner, outcome = self._engine.step(states.context, states.inner, actions)
        scaled = jnp.clip(Scaler.from_box(self.inner.family.action).scale(actions), -1.0, 1.0)
        learn = jax.vmap(update, in_axes=(None, 0, 0, 0, 0))
        belief = learn(self.model, states.belief, states.observation, scaled, outcome.observation)
        after = states._replace(observation=outcome.observation, belief=belief, inner=inner)
        return after, outcome._replace(observation=self._extended(after))

    def _extended(self, state: TaskState) -> Array:
        features = jax.vmap(lambda b: b.features())(state.belief)
        code = self.model.codes[state.environment] + state.context[:, -self.model.code_size :]
        return jnp.concatenate([state.observation, features, code], axis=-1)

    def _draw(self, key: Array) -> tuple[Array, Array, Array]:
        """A training environment [], its context with the offset of the code [c + K], and a key for its start."""
        real_key, radius_key, direction_key, jitter_key, which_key, reset_key = jax.random.split(key, 6)
        codes = self.model.codes
        environment = jax.random.randint(real_key, (), 0, codes.shape[0])
        made = sample_code(codes, radius_key, direction_key, jitter_key)
        synthesised = jax.random.uniform(which_key) < self.share
        nearest = jnp.argmin(jnp.sum((codes - made) ** 2, axis=-1))
        environment = jnp.where(synthesised, nearest, environment)
        offset = jnp.where(synthesised, made - codes[environment], 0.0)
        return environment, jnp.concatenate([self.contexts[environment], offset]), reset_key


def sample_code(codes: Array, radius_key: Array, direction_key: Array, jitter_key: Array) -> Array:
    """A code [K] in any direction from the centre, as far from it as one of the training codes [E, K], or a bit more.

    Codes lie in the unit ball of an ellipsoid around them, and use as many of the K numbers as are needed.
    """
    used = jnp.any(codes != 0.0, axis=0)
    direction = jnp.where(used, jax.random.normal(direction_key, used.shape), 0.0)
    direction = direction / jnp.maximum(jnp.linalg.norm(direction), 1e-6)
    radius = jax.random.choice(radius_key, jnp.linalg.norm(codes, axis=-1))
    return radius * jax.random.uniform(jitter_key, minval=1 - JITTER, maxval=1 + JITTER) * direction
