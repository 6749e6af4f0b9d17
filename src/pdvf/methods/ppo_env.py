"""PPOenv (section 4.3), an upper bound: the policy that was trained in the very environment it is tested in."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.methods.base import AtOnce, Feedback, Hidden, Inputs, KeepsMemory, Look, Method
from pdvf.paper import untrained
from pdvf.paper.pipeline import Problem
from pdvf.rl.networks import Actor


class OwnPolicy(KeepsMemory):
    """The policy that was trained in the very environment."""

    actors: Actor  # [E, ...] training and test environments

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """The environment it is told."""
        assert hidden is not None
        return hidden.environment

    def act(self, memory: Array, observation: Array, feedback: Feedback) -> tuple[Array, Array]:
        """The mean of that environment's policy."""
        return jax.tree.map(lambda x: x[memory], self.actors)(observation), memory


def train_ppo_env(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """Nothing to train: phase 1 did, in the test environments too."""

    def make() -> OwnPolicy:
        def join(kept: Array, bound: Array) -> Array:
            return jnp.swapaxes(jnp.concatenate([kept[-1], bound]), 0, 1)  # [seeds, E, ...]

        return OwnPolicy(jax.tree.map(join, inputs["policies"], inputs["upper_bound"]))

    return AtOnce("ppo-env", make)


PPO_ENV = Method(
    "ppo-env",
    "PPO trained in the very environment it is tested in (upper bound)",
    train_ppo_env,
    ("policies", "upper_bound"),
    lambda problem: OwnPolicy(untrained.actors(problem, problem.config.policy_seeds, len(problem.everywhere))),
    privileged=True,
    every_run=True,
    look=Look("PPOenv", "#e69f00", 1),
)
