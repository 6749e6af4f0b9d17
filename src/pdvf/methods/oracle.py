"""Oracle (ours): one policy for all training environments that is told the true context."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.families.base import Family
from pdvf.methods.base import Feedback, Hidden, Inputs, KeepsMemory, Look, Method, Training, one_policy
from pdvf.methods.multitask_ppo import method_ppo, task_ppo
from pdvf.paper.pipeline import Problem
from pdvf.rl.networks import Actor


class ContextConditioned(KeepsMemory):
    """A policy that is given the true context: what conditioning could reach if inference were perfect."""

    actor: Actor
    names: tuple[str, ...] = eqx.field(static=True)
    centre: Array
    width: Array

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """Features [f] of the context it is told."""
        assert hidden is not None
        return (context_features(self.names, hidden.context) - self.centre) / self.width

    def act(self, memory: Array, observation: Array, feedback: Feedback) -> tuple[Array, Array]:
        """The policy's mean."""
        return self.actor(jnp.concatenate([observation, memory])), memory


def context_features(names: tuple[str, ...], contexts: Array) -> Array:
    """What a policy is told of contexts [..., c]: cosine and sine of angles, other numbers as they are."""
    parts: list[Array] = []
    for i, name in enumerate(names):
        value = contexts[..., i : i + 1]
        parts += [jnp.cos(value), jnp.sin(value)] if "angle" in name else [value]
    return jnp.concatenate(parts, axis=-1)


def scaled_features(family: Family, contexts: Array) -> tuple[Array, Array, Array]:
    """Features [E, f] of training contexts [E, c] with mean 0 and largest size 1, that mean and that size [f].

    Only angles keep their units: they are of order one already, and a circle should stay one.
    """
    raw = context_features(family.context_names, jnp.asarray(contexts))
    angle = jnp.asarray(
        [flag for name in family.context_names for flag in ([True, True] if "angle" in name else [False])]
    )
    centre = jnp.where(angle, 0.0, jnp.mean(raw, axis=0))
    width = jnp.where(angle, 1.0, jnp.maximum(jnp.max(jnp.abs(raw - centre), axis=0), 1e-6))
    return (raw - centre) / width, centre, width


def train_oracle(problem: Problem, inputs: Inputs, key: Array) -> Training:
    """One policy for all training environments, told which it is in."""
    seeds, family = problem.config.policy_seeds, problem.engine.family
    features, centre, width = scaled_features(family, problem.contexts)

    def assemble(actor: Any) -> ContextConditioned:
        rows = [jnp.tile(x, (seeds, 1)) for x in (centre, width)]
        return ContextConditioned(actor, family.context_names, *rows)

    given = jnp.tile(features[None, :, None], (seeds, 1, 1, 1))
    return task_ppo(problem, "oracle", key, method_ppo(problem, seeds), assemble, features=given)


ORACLE = Method(
    "oracle",
    "one PPO policy that is told the true context (ours)",
    train_oracle,
    privileged=True,
    policies=one_policy,
    ensemble=True,
    look=Look("Oracle*", "#333333", 10),
)
