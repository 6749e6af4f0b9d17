"""The best single policy (ours): the one of phase 1 that is best over all training environments."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.methods.base import AtOnce, Inputs, Look, Method
from pdvf.methods.ppo_all import Unconditioned
from pdvf.paper import untrained
from pdvf.paper.pipeline import Problem, best_policy


def train_best_single(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """Nothing to train: phase 1 did."""
    seeds = problem.config.model_seeds

    def make() -> Unconditioned:
        best = best_policy(problem, inputs["policies"])
        return Unconditioned(jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), best))

    policies = problem.config.policy_seeds * len(problem.contexts)
    return AtOnce("best-single", make, problem.transfer_steps(policies))


BEST_SINGLE = Method(
    "best-single",
    "the finished training policy with the best mean return over the training environments (ours)",
    train_best_single,
    ("policies",),
    lambda problem: Unconditioned(untrained.actors(problem, problem.config.model_seeds)),
    look=Look("Best single*", "#999933", 12),
)
