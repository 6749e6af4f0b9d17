"""Untrained artefacts: hyperparameters make the structure that the leaves of a trained one are read into.

Only shapes and types matter here. Nothing is simulated or trained to know them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from pdvf.paper.adapter import Adapter
from pdvf.paper.aggregate import ReturnScale
from pdvf.paper.dynamics import DynamicsAutoencoder
from pdvf.paper.dynamics import make as make_dynamics
from pdvf.paper.policy import PolicyAutoencoder
from pdvf.paper.policy import make as make_policy
from pdvf.paper.prober import Body
from pdvf.paper.problem import Problem
from pdvf.paper.quadratic import QuadraticValue
from pdvf.paper.trajectories import Trajectories
from pdvf.rl.networks import Actor, make_actor_critic

Tree = TypeVar("Tree")


def zeros(tree: Tree, *lead: int) -> Tree:
    """A pytree of zeros [lead, ...] in place of leaves [...]."""
    return jax.tree.map(lambda x: jnp.zeros((*lead, *x.shape), x.dtype), tree)


def actors(problem: Problem, *lead: int) -> Actor:
    """Policies [lead, ...] like those of phase 1."""
    family, hidden = problem.engine.family, problem.config.ppo.hidden
    actor, _ = make_actor_critic(family.observation, family.action, hidden, jax.random.key(0))
    return zeros(actor, *lead)


def policies(problem: Problem) -> Actor:
    """[K, E, seeds, ...]."""
    config = problem.config
    return actors(problem, config.ppo.checkpoints, len(problem.contexts), config.policy_seeds)


def upper_bound(problem: Problem) -> Actor:
    """[test E, seeds, ...]."""
    return actors(problem, len(problem.everywhere) - len(problem.contexts), problem.config.policy_seeds)


def trajectories(problem: Problem) -> Trajectories:
    """[C, E, J, T, ...]."""
    family, config = problem.engine.family, problem.config
    each = (_count(problem), len(problem.contexts), config.collect.episodes)
    steps = (*each, config.collect.steps or family.horizon)
    observation, action = (jnp.zeros((*steps, box.size)) for box in (family.observation, family.action))
    return Trajectories(observation, action, action, observation, jnp.zeros(steps, bool), jnp.zeros(each))


def dynamics(problem: Problem) -> DynamicsAutoencoder:
    """[S, ...]."""
    one = make_dynamics(trajectories(problem), problem.config.dynamics, jax.random.key(0))
    return zeros(one, problem.config.model_seeds)


def policy(problem: Problem) -> PolicyAutoencoder:
    """[S, ...]."""
    one = make_policy(trajectories(problem), problem.config.policy, jax.random.key(0))
    return zeros(one, problem.config.model_seeds)


def bodies(problem: Problem, count: int) -> Body:
    """[count, ...]."""
    models: Any = jax.tree.map(lambda x: x[0], (dynamics(problem), policy(problem).decoder))
    return zeros(Body(actors(problem), *models), count)


def adapter(problem: Problem) -> Adapter:
    """[S, ...]: in each the best stages of W."""
    return initial_adapter(problem, problem.config.value.snapshots)


def initial_adapter(problem: Problem, stages: int = 1) -> Adapter:
    """[S, ...]: in each one stage of W, or several."""
    config, seeds, environments = problem.config, problem.config.model_seeds, len(problem.contexts)
    options, sizes = config.value, (config.dynamics.embedding, config.policy.embedding)
    body = bodies(problem, seeds)
    scaler = jax.tree.map(lambda x: x[0], body.dynamics.observation)
    member = QuadraticValue(scaler, *sizes, options.hidden, jax.random.key(0))
    return Adapter(
        body,
        zeros(member, seeds, stages * options.members),
        zeros(ReturnScale.of(jnp.zeros((1, environments)), options), seeds),
        jnp.zeros((seeds, environments, sizes[0])),
        jnp.zeros((seeds, _count(problem) * environments, sizes[1])),
        options.anchor,
        options.anchor_width,
    )


def _count(problem: Problem) -> int:
    """C, all kept policies."""
    config = problem.config
    return config.ppo.checkpoints * len(problem.contexts) * config.policy_seeds
