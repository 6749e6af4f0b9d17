"""The action to begin with where the first steps decide: held while probing, found by search.

A body that nobody has seen may be thrown out of its bounds before anything about it is known. The one action that keeps
the training environments farthest from the end, with a given policy to go on, keeps others from it too
(docs/decisions/0010-probe.md).
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.paper.pipeline import Problem
from pdvf.paper.probe import first_danger
from pdvf.rl.networks import Actor

ROUNDS, CANDIDATES, KEPT, EPISODES = 10, 32, 6, 4
"""Of the cross-entropy method, and of each candidate in each training environment."""
WIDE, NARROW = 0.7, 0.03
"""Spread of the first candidates, and what is added to that of the best."""


def brace(problem: Problem, actor: Actor, key: Array) -> Actor:
    """A policy that holds one action, after which `actor` comes least near to the end of the task."""

    @jax.jit
    def search(actor: Actor, key: Array) -> Actor:
        def score(action: Array, key: Array) -> Array:
            return first_danger(problem, holding(actor, action), actor, key, EPISODES)

        def better(found: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], None]:
            draw_key, play_key = jax.random.split(key)
            mean, spread = found
            drawn = mean + spread * jax.random.normal(draw_key, (CANDIDATES, mean.shape[0]))
            actions = jnp.clip(drawn, -1.0, 1.0)
            scores = jax.vmap(score, in_axes=(0, None))(actions, play_key)
            best = actions[jnp.argsort(scores)[:KEPT]]
            return (jnp.mean(best, axis=0), jnp.std(best, axis=0) + NARROW), None

        nothing = jnp.zeros_like(actor.log_std)
        (action, _), _ = jax.lax.scan(better, (nothing, nothing + WIDE), jax.random.split(key, ROUNDS))
        return holding(actor, action)

    return search(actor, key)


def holding(actor: Actor, action: Array) -> Actor:
    """A policy of the same shape that does `action` [a] whatever it sees."""
    weight = jnp.zeros_like(actor.layers[-1].weight)
    return eqx.tree_at(lambda a: (a.layers[-1].weight, a.layers[-1].bias), actor, (weight, action))
