"""A model of the dynamics that is affine in what is hidden: s' - s = g(s, a) + G(s, a) z.

The few numbers z of an episode follow from its N_d probing transitions by ridge regression, which is differentiable:
g, G and the ridge are trained end to end, to predict other transitions of the same episode. An affine form carries
further into dynamics between and beyond those of training than a network that is given z_d as one more input.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.config import ImagineOptions
from pdvf.core.arrays import Array, Scaler
from pdvf.core.networks import FeedForward
from pdvf.paper.trajectories import Trajectories, choose

DECODED = 8  # transitions of an episode that one gradient step predicts
FARTHEST = 10.0  # standard deviations of observations


class Evidence(NamedTuple):
    """The two sides of the equations for z."""

    left: Array  # [k, k]
    right: Array  # [k]


class AffineDynamics(eqx.Module):
    """One model; several are trained side by side."""

    observation: Scaler
    change: Scaler
    network: FeedForward
    log_ridge: Array  # []

    def parts(self, observation: Array, action: Array) -> tuple[Array, Array]:
        """g [o] and G [o, k] for a state [o] and a scaled action [a]; changes are in units of their spread."""
        scaled = jax.lax.stop_gradient(self.observation).scale(observation)
        out = self.network(jnp.concatenate([scaled, action])).reshape(observation.shape[-1], -1)
        return out[:, 0], out[:, 1:]

    def infer(self, observation: Array, action: Array, following: Array, valid: Array) -> Array:
        """z [k] from transitions s [m, o], a [m, a] scaled, s' [m, o] where valid [m]."""
        return self.solve(self.evidence(observation, action, following, valid))

    def evidence(self, observation: Array, action: Array, following: Array, valid: Array) -> Evidence:
        """What transitions say of z; that of several sets of them adds up."""
        constant, slope = jax.vmap(self.parts)(observation, action)
        seen = jax.lax.stop_gradient(self.change).scale(following - observation)
        weight = valid.astype(seen.dtype)
        left = jnp.einsum("m,moi,moj->ij", weight, slope, slope)
        return Evidence(left, jnp.einsum("m,moi,mo->i", weight, slope, seen - constant))

    def solve(self, evidence: Evidence) -> Array:
        """z [k], by ridge regression."""
        left, right = evidence
        return jnp.linalg.solve(left + jnp.exp(self.log_ridge) * jnp.eye(left.shape[0]), right)

    def predict(self, observation: Array, action: Array, z: Array) -> Array:
        """The change of state [o] in units of its spread."""
        constant, slope = self.parts(observation, action)
        return constant + slope @ z

    def step(self, observation: Array, action: Array, z: Array) -> Array:
        """The next state [o], no further from the data's than `FARTHEST` spreads: a model may run away."""
        following = observation + self.change.unscale(self.predict(observation, action, z))
        far, scaler = FARTHEST * self.observation.width, self.observation
        return jnp.clip(following, scaler.centre - far, scaler.centre + far)


def make(trajectories: Trajectories, options: ImagineOptions, key: Array) -> AffineDynamics:
    """A fresh model with the scales of the data."""
    o, a = trajectories.observation.shape[-1], trajectories.action.shape[-1]
    weight = trajectories.valid.astype(jnp.float32)
    sizes = (o + a, options.width, options.width, o * (1 + options.hidden_numbers))
    return AffineDynamics(
        Scaler.from_data(trajectories.observation, weight),
        Scaler.from_data(trajectories.next_observation - trajectories.observation, weight),
        FeedForward(sizes, key, jax.nn.silu),
        jnp.zeros(()),
    )


def loss(model: AffineDynamics, trajectories: Trajectories, probe_steps: int, count: int, key: Array, held_out: bool):
    """Pseudo-Huber error of predicted changes, for `count` episodes: walls and contacts do not dominate it."""
    choose_key, step_key = jax.random.split(key)
    batch = choose(trajectories, count, choose_key, held_out)

    def one(episode: Trajectories, key: Array) -> Array:
        first = jax.tree.map(lambda x: x[:probe_steps], episode[:5])
        z = model.infer(first[0], first[1], first[3], first[4])
        length = jnp.sum(episode.valid)
        chosen = jax.random.randint(key, (DECODED,), jnp.clip(length - 1, 0, probe_steps), length)  # others, if any
        s, a, following = (x[chosen] for x in (episode.observation, episode.action, episode.next_observation))
        predicted = jax.vmap(model.predict, in_axes=(0, 0, None))(s, a, z)
        error = predicted - jax.lax.stop_gradient(model.change).scale(following - s)
        return jnp.mean(jnp.sqrt(1.0 + (error / WIDTH) ** 2) - 1.0) * WIDTH**2

    return jnp.mean(jax.vmap(one)(batch, jax.random.split(step_key, count)))


WIDTH = 0.1
"""Errors above this, in units of the spread of changes, count linearly."""
