"""Telling environments apart from probing steps without z_d (ours): do nothing, and see what happens anyway.

The autoencoder of the dynamics explains whatever changes a state most, and that is what policies do. Where the hidden
part moves a state by a thousandth of that, as a current does a swimmer in one step, z_d does not show it. An agent that
does nothing sees it at once: of the first and the last observation of such probing steps, Fisher's linear discriminant
takes the combinations in which the training environments lie farthest apart, compared with how much episodes of one of
them vary.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.families.base import Array
from pdvf.methods.brace import holding
from pdvf.phases.problem import Problem
from pdvf.rl.networks import Actor
from pdvf.rl.rollout import begin, play

EPISODES = 64
"""In each training environment, with nothing done for the probing steps."""
CLEAR = 0.5
"""How far apart environments lie in a direction that counts, in standard deviations of the episodes of one."""
LEAST = 1e-5
"""What episodes of one vary at least, as a share of all: observations have a precision."""


class Discriminant(eqx.Module):
    """Stands in for the encoder of the dynamics: in its directions the training environments have a spread of 1."""

    centre: Array  # [2 o]
    directions: Array  # [2 o, d]

    def encode(self, observation: Array, action: Array, following: Array, valid: Array) -> Array:
        """Where the environment of one episode lies [d], from its probing steps [N_d, ...]."""
        del action
        last = jnp.maximum(jnp.sum(valid) - 1, 0)
        return (_features(observation[0], following[last]) - self.centre) @ self.directions


def _features(first: Array, last: Array) -> Array:
    return jnp.concatenate([first, last - first], axis=-1)


def recognise(problem: Problem, actor: Actor, key: Array) -> tuple[Actor, Discriminant, Array]:
    """A probe that does nothing, what tells environments apart by it, and where the training ones lie [E, d].

    `actor` lends the shape of a policy.
    """
    engine, count = problem.engine, problem.contexts.shape[0]
    still = holding(actor, jnp.zeros_like(actor.log_std))
    contexts = jnp.repeat(jnp.asarray(problem.contexts), EPISODES, axis=0)

    @jax.jit
    def look(key: Array) -> Array:
        begin_key, play_key = jax.random.split(key)
        first = begin(engine, contexts, begin_key)
        last, _ = play(
            engine, contexts, first, lambda s, _: jax.vmap(still)(s), play_key, engine.family.probe_steps, record=False
        )
        return _features(first.observation, last.observation).reshape(count, EPISODES, -1)

    seen = look(key)
    size = seen.shape[-1]
    dimensions = min(count - 1, size)
    shapes = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((size,), (size, dimensions), (count, dimensions)))
    centre, directions, places = jax.pure_callback(discriminant, shapes, seen)
    return still, Discriminant(centre, directions), places


def discriminant(seen: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre [f] and directions [f, d] for what was seen [E, M, f], and where the E environments lie [E, d].

    Directions in which environments do not lie apart are 0, but for the first; in all others their spread is 1. Written
    out because episodes may not vary at all, and libraries drop what does not vary.
    """
    seen = np.asarray(seen, np.float64)
    count, episodes, size = seen.shape
    means = seen.mean(axis=1)
    centre = means.mean(axis=0)
    scale = seen.reshape(-1, size).std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    within = ((seen - means[:, None]) / scale).reshape(-1, size) / np.sqrt(count * (episodes - 1))
    _, spread, axes = np.linalg.svd(within, full_matrices=False)
    whiten = (axes / np.maximum(spread, LEAST)[:, None]).T / scale[:, None]  # [f, f]: episodes of one vary by 1
    _, apart, axes = np.linalg.svd((means - centre) @ whiten / np.sqrt(count), full_matrices=False)
    dimensions = min(count - 1, size)
    apart, axes = apart[:dimensions], axes[:dimensions]
    counts = (apart >= CLEAR) | (np.arange(dimensions) == 0)
    directions = whiten @ np.where(counts, axes.T / np.maximum(apart, 1e-9), 0.0)
    places = (means - centre) @ directions
    return centre.astype(np.float32), directions.astype(np.float32), places.astype(np.float32)
