"""A method in one file: whatever the environment, the policy of the first training environment acts."""

from __future__ import annotations

import jax

from pdvf.core.arrays import Array
from pdvf.methods.base import AtOnce, Inputs, Look, Method
from pdvf.methods.ppo_all import Unconditioned
from pdvf.paper.pipeline import Problem
from pdvf.paper.untrained import actors


def train(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    return AtOnce("first", lambda: Unconditioned(jax.tree.map(lambda x: x[-1, 0], inputs["policies"])))


FIRST = Method(
    "first",
    "policy of the first training environment",
    train,
    ("policies",),
    lambda problem: Unconditioned(actors(problem, problem.config.policy_seeds)),
    look=Look("First", "#123456", 50),
)
