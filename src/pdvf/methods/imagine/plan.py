"""Candidates for a policy embedding, and the return each would get if the model of the dynamics were right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.core.networks import unit
from pdvf.core.objective import objective_of
from pdvf.families.base import ImaginableFamily
from pdvf.methods.imagine.model import AffineDynamics
from pdvf.paper.aggregate import between
from pdvf.paper.policy import PolicyDecoder


def candidates(bank: Array, count: int, key: Array) -> Array:
    """Embeddings [count, e]: half of the training policies [B, e], half between two of them, with a little noise."""
    own_key, *keys = jax.random.split(key, 4)
    half = count // 2
    own = bank[jax.random.randint(own_key, (count - half,), 0, bank.shape[0])]
    return jnp.concatenate([own, between(bank, half, keys)])


def hill_climb(score: Callable[[Array], Array], tried: Array, moves: Array) -> Array:
    """The best [e] of embeddings [N, e] by `score`, then of those around it: moved by rounds of noise [R, M, e].

    A score that is no number is never the best.
    """

    def best(tried: Array) -> Array:
        scores = jax.vmap(score)(tried)
        return tried[jnp.argmax(jnp.where(jnp.isfinite(scores), scores, -jnp.inf))]

    def move(z_pi: Array, noise: Array) -> tuple[Array, None]:
        return best(jnp.concatenate([z_pi[None], unit(z_pi + noise)])), None

    return jax.lax.scan(move, best(tried), moves)[0]


def imagine(
    family: ImaginableFamily,
    models: AffineDynamics,
    z: Array,
    decoder: PolicyDecoder,
    z_pi: Array,
    observation: Array,
    time: Array | int,
    steps: int,
) -> Array:
    """Imagined return [] of playing on as z_pi [e] from an observation [o]: over models [M, ...] with z [M, k].

    Rewards and the end of an episode are the task's own, told from observations.
    """
    count = z.shape[0]

    objective = objective_of(family)

    def step(carry: tuple[Array, Array, Any], t: Array):
        states, alive, score = carry  # [M, ...]
        action = jnp.clip(jax.vmap(decoder, in_axes=(0, None))(states, z_pi), -1.0, 1.0)
        following = eqx.filter_vmap(lambda model, s, a, z: model.step(s, a, z))(models, states, action, z)
        reward, ended = jax.vmap(family.reward_and_done, in_axes=(0, 0, 0, None))(
            states, action, following, time + t + 1
        )
        following = jnp.where(alive[:, None], following, states)
        return (following, alive & ~ended, score.add(reward, alive)), None

    begin = (jnp.tile(observation, (count, 1)), jnp.ones(count, bool), objective.start(count))
    (_, _, score), _ = jax.lax.scan(step, begin, jnp.arange(steps))
    return objective.summary(score.worth, 0)
