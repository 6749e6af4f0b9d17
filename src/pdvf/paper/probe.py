"""Which of the finished policies probes, and which is the best for everything; test environments have no say."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.core.devices import compiled
from pdvf.core.objective import objective_of
from pdvf.engines.rollout import Episodes, Transitions, acting, play_from_start
from pdvf.families.base import Family, GuardedFamily
from pdvf.paper.problem import Problem, Stream, finished_policies, transfer
from pdvf.rl.networks import Actor

EPISODES = 16
"""Beginnings of episodes that each policy plays in each training environment."""
SOON = 0.1
"""Share of an episode that counts as its beginning."""
TOLERATED = 0.02
"""Share of lost beginnings above the lowest there is that a probe may have."""
FIRST = 4
"""Times N_d: the steps in which a calm policy stays away from the end."""


def probe_policy(problem: Problem, policies: Actor) -> Actor:
    """The best finished policy, by its mean return over the training environments, if it is safe.

    If not, of the safe ones the calmest where the family can tell, else the best. A probe that ends the episode leaves
    nothing to adapt to, whatever it returns elsewhere (docs/decisions/0010-probe.md). `probe_steps` says what it costs.
    """

    def safest(finished: Actor, returns: Array, mean: Array) -> Array:
        lost = lost_beginnings(problem, finished, jnp.mean(returns))
        safe = lost <= jnp.min(lost) + TOLERATED
        best = jnp.argmax(mean)
        merit = -dangers(problem, finished) if isinstance(problem.engine.family, GuardedFamily) else mean
        return jnp.where(safe[best], best, jnp.argmax(jnp.where(safe, merit, -jnp.inf)))

    return _chosen(problem, policies, safest)


def best_policy(problem: Problem, policies: Actor) -> Actor:
    """The finished policy with the best mean return over the training environments."""
    return _chosen(problem, policies, lambda finished, returns, mean: jnp.argmax(mean))


def _chosen(problem: Problem, policies: Actor, choose: Callable[[Actor, Array, Array], Array]) -> Actor:
    """One of the finished policies [P, ...], by their returns [P, E] in the training environments and the mean [P]."""

    @compiled
    def choice(policies: Actor) -> Actor:
        finished = finished_policies(policies)
        returns = transfer(problem.engine, problem.contexts, finished, problem.key(Stream.TRANSFER))
        chosen = choose(finished, returns, objective_of(problem.engine.family).summary(returns, 1))
        return jax.tree.map(lambda x: x[chosen], finished)

    return choice(policies)


def probe_steps(problem: Problem) -> int:
    """Environment steps that `probe_policy` makes."""
    family = problem.engine.family
    beginnings = _soon(family) + (_first(family) if isinstance(family, GuardedFamily) else 0)
    environments = len(problem.contexts)
    return environments * problem.config.policy_seeds * environments * (family.horizon + EPISODES * beginnings)


def _soon(family: Family) -> int:
    return max(family.probe_steps, math.ceil(SOON * family.horizon))


def _first(family: Family) -> int:
    return min(FIRST * family.probe_steps, family.horizon)


def lost_beginnings(problem: Problem, actors: Actor, usual: Array) -> Array:
    """Share [P] of episodes in the training environments that policies [P, ...] end soon, below a return of `usual`.

    An episode that ends soon and well has reached its goal.
    """

    def lost(episodes: Episodes, made: None) -> Array:
        return jnp.mean(~episodes.alive & (episodes.returns < usual))

    steps = _soon(problem.engine.family)
    return _of_beginnings(problem, actors, Stream.LOST_BEGINNINGS, steps, lost, record=False)


def dangers(problem: Problem, actors: Actor) -> Array:
    """The largest danger [P] in the first steps of episodes of policies [P, ...].

    On average over episodes; the mean over the training environments plus that of the worst.
    """
    family = problem.engine.family
    assert isinstance(family, GuardedFamily)
    danger = jax.vmap(jax.vmap(family.danger))

    def largest(episodes: Episodes, made: Transitions) -> Array:
        each = jnp.max(jnp.where(made.valid, danger(made.next_observation), 0.0), axis=0, initial=0.0)
        mean = jnp.mean(each.reshape(-1, EPISODES), axis=1)
        return jnp.mean(mean) + jnp.max(mean)

    return _of_beginnings(problem, actors, Stream.DANGERS, _first(family), largest)


def _of_beginnings(
    problem: Problem, actors: Actor, stream: Stream, steps: int, see: Callable[..., Array], record: bool = True
) -> Array:
    """What `see` makes of the beginnings of episodes in the training environments, [P] for policies [P, ...]."""
    contexts = jnp.repeat(jnp.asarray(problem.contexts), EPISODES, axis=0)

    def one(actor: Actor, key: Array) -> Array:
        return see(*play_from_start(problem.engine, contexts, acting(actor), key, steps, record))

    return jax.vmap(one)(actors, jax.random.split(problem.key(stream), actors.log_std.shape[0]))
