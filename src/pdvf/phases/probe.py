"""Which of the finished policies probes, and which is the best for everything; test environments have no say."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pdvf.families.base import Array
from pdvf.parallel import compiled
from pdvf.phases.problem import Problem, finished_policies, transfer
from pdvf.rl.networks import Actor
from pdvf.rl.rollout import begin, play

EPISODES = 16
"""Beginnings of episodes that each policy plays in each training environment."""
SOON = 0.1
"""Share of an episode that counts as its beginning."""
TOLERATED = 0.02
"""Share of lost beginnings above the lowest there is that a probe may have."""


def probe_policy(problem: Problem, policies: Actor) -> Actor:
    """Of the safe finished policies, the one with the best mean return over the training environments.

    A probe that ends the episode leaves nothing to adapt to, whatever it returns elsewhere
    (docs/decisions/0010-probe.md).
    """

    @compiled
    def choose(policies: Actor) -> Actor:
        finished = finished_policies(policies)
        returns = _returns(problem, finished)
        lost = lost_beginnings(problem, finished, jnp.mean(returns))
        safe = lost <= jnp.min(lost) + TOLERATED
        best = jnp.argmax(jnp.where(safe, jnp.mean(returns, axis=1), -jnp.inf))
        return jax.tree.map(lambda x: x[best], finished)

    return choose(policies)


def best_policy(problem: Problem, policies: Actor) -> Actor:
    """The finished policy with the best mean return over the training environments."""

    @compiled
    def choose(policies: Actor) -> Actor:
        finished = finished_policies(policies)
        best = jnp.argmax(jnp.mean(_returns(problem, finished), axis=1))
        return jax.tree.map(lambda x: x[best], finished)

    return choose(policies)


def lost_beginnings(problem: Problem, actors: Actor, usual: Array) -> Array:
    """Share [P] of episodes in the training environments that policies [P, ...] end soon, below a return of `usual`.

    An episode that ends soon and well has reached its goal.
    """
    engine = problem.engine
    contexts = jnp.repeat(jnp.asarray(problem.contexts), EPISODES, axis=0)
    steps = max(engine.family.probe_steps, math.ceil(SOON * engine.family.horizon))

    def one(actor: Actor, key: Array) -> Array:
        begin_key, play_key = jax.random.split(key)
        episodes = begin(engine, contexts, begin_key)
        episodes, _ = play(engine, contexts, episodes, lambda s, _: jax.vmap(actor)(s), play_key, steps, record=False)
        return jnp.mean(~episodes.alive & (episodes.returns < usual))

    return jax.vmap(one)(actors, jax.random.split(problem.key(10), actors.log_std.shape[0]))


def _returns(problem: Problem, finished: Actor) -> Array:
    return transfer(problem.engine, problem.contexts, finished, problem.key(5))
