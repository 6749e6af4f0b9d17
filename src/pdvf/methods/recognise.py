"""Telling environments apart from probing steps without z_d (ours): do nothing, and see what happens anyway.

The autoencoder of the dynamics explains whatever changes a state most, and that is what policies do. Where the hidden
part moves a state by a thousandth of that, as a current does a swimmer in one step, z_d does not show it. An agent that
does nothing sees it at once: of the first and the last observation of such probing steps, Fisher's linear discriminant
takes the combinations in which the training environments lie farthest apart, compared with how much episodes of one of
them vary. What a single episode shows in each is shrunk by how little that tells, as a best linear estimate is.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Scaler
from pdvf.engines.rollout import acting, begin, play
from pdvf.methods.brace import holding
from pdvf.paper.problem import Problem
from pdvf.rl.networks import Actor

EPISODES = 64
"""In each training environment, with nothing done for the probing steps."""
LEAST = 1e-5
"""What episodes of one vary at least, as a share of all: observations have a precision."""


class Discriminant(eqx.Module):
    """Stands in for the encoder of the dynamics: in directions that are clear the training environments spread by 1."""

    centre: Array  # [2 o]
    directions: Array  # [2 o, d]

    def encode(self, observation: Array, action: Array, following: Array, valid: Array) -> Array:
        """Where the environment of one episode lies [d], from its probing steps [N_d, ...]."""
        del action
        last = jnp.maximum(jnp.sum(valid) - 1, 0)
        seen = _features(observation[0], following[last]) - self.centre
        return jnp.dot(seen, self.directions, precision=jax.lax.Precision.HIGHEST)  # most of it cancels


def _features(first: Array, last: Array) -> Array:
    return jnp.concatenate([first, last - first], axis=-1)


def recognise(problem: Problem, actor: Actor, key: Array) -> tuple[Actor, Discriminant, Array]:
    """A probe that does nothing, what tells environments apart by it, and where the training ones lie [E, d].

    `actor` lends the shape of a policy.
    """
    engine, count = problem.engine, problem.contexts.shape[0]
    nothing = Scaler.from_box(engine.family.action).scale(jnp.zeros_like(actor.log_std))
    still = holding(actor, jnp.clip(nothing, -1.0, 1.0))
    contexts = jnp.repeat(jnp.asarray(problem.contexts), EPISODES, axis=0)

    begin_key, play_key = jax.random.split(key)
    first = begin(engine, contexts, begin_key)
    last, _ = play(engine, contexts, first, acting(still), play_key, engine.family.probe_steps, record=False)
    seen = _features(first.observation, last.observation).reshape(count, EPISODES, -1)
    size = seen.shape[-1]
    dimensions = min(count - 1, size)
    shapes = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((size,), (size, dimensions), (count, dimensions)))
    centre, directions, places = jax.pure_callback(discriminant, shapes, seen, vmap_method="sequential")
    return still, Discriminant(centre, directions), places


def discriminant(seen: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre [f] and directions [f, d] for what was seen [E, M, f], and where the E environments lie [E, d].

    Where they lie apart by r in a direction, in standard deviations of the episodes of one, their spread there is
    r^2 / (1 + r^2): 1 if that is clear, 0 if it is not. Written out because episodes may not vary at all, and libraries
    drop what does not vary.
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
    directions = whiten @ (axes.T * (apart / (1 + apart**2)))
    places = (means - centre) @ directions
    return centre.astype(np.float32), directions.astype(np.float32), places.astype(np.float32)
