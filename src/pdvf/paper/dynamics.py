"""Dynamics autoencoder: z_d = E_d({(s, a, s')}), s' = D_d(s, a, z_d) (section 3.3)."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.config import AutoencoderOptions
from pdvf.core.arrays import Array, Scaler
from pdvf.core.networks import FeedForward, SetEncoder
from pdvf.engines.rollout import Transitions
from pdvf.paper.trajectories import Trajectories, choose

DECODED = 8  # transitions of an episode that one gradient step predicts


class DynamicsAutoencoder(eqx.Module):
    """Encodes the first N_d transitions of an episode and predicts any other of the same environment.

    Inputs are normalised and the change of state is predicted instead of the state (docs/decisions/0006-embeddings.md).
    """

    encoder: SetEncoder
    decoder: FeedForward
    observation: Scaler
    change: Scaler

    def encode(self, steps: Transitions | Trajectories, key: Array | None = None) -> Array:
        """z_d [e] from steps [m, ...] of one episode: s, a scaled and s' where they are valid."""
        change = self.change.scale(steps.next_observation - steps.observation)
        elements = jnp.concatenate([self.observation.scale(steps.observation), steps.action, change], axis=-1)
        return self.encoder(elements, steps.valid, key)

    def decode(self, observation: Array, action: Array, z_d: Array) -> Array:
        """Predicted change of the observation [o], scaled."""
        return self.decoder(jnp.concatenate([self.observation.scale(observation), action, z_d]))


def make(trajectories: Trajectories, options: AutoencoderOptions, key: Array) -> DynamicsAutoencoder:
    """A fresh autoencoder with the scales of the data."""
    encoder_key, decoder_key = jax.random.split(key)
    o, a = trajectories.observation.shape[-1], trajectories.action.shape[-1]
    weight = trajectories.valid.astype(jnp.float32)
    hidden = (options.decoder, options.decoder)
    return DynamicsAutoencoder(
        SetEncoder(2 * o + a, options.model, options.embedding, options.dropout, encoder_key),
        FeedForward((o + a + options.embedding, *hidden, o), decoder_key),
        Scaler.from_data(trajectories.observation, weight),
        Scaler.from_data(trajectories.next_observation - trajectories.observation, weight),
    )


def loss(
    model: DynamicsAutoencoder,
    trajectories: Trajectories,
    probe_steps: int,
    count: int,
    key: Array,
    held_out: bool,
) -> Array:
    """Squared error of the predicted change, in units of its spread, for `count` episodes."""
    choose_key, step_key, dropout_key = jax.random.split(key, 3)
    batch = choose(trajectories, count, choose_key, held_out)

    def one(episode: Trajectories, step_key: Array, dropout_key: Array) -> tuple[Array, Array]:
        first = jax.tree.map(lambda x: x[:probe_steps], episode._replace(returns=()))
        z_d = model.encode(first, None if held_out else dropout_key)
        length = jnp.sum(episode.valid)
        chosen = jax.random.randint(step_key, (DECODED,), 0, length)
        s, a, following = (x[chosen] for x in (episode.observation, episode.action, episode.next_observation))
        predicted = jax.vmap(model.decode, in_axes=(0, 0, None))(s, a, z_d)
        return jnp.mean((predicted - model.change.scale(following - s)) ** 2), z_d

    keys = jax.random.split(step_key, count), jax.random.split(dropout_key, count)
    return jnp.mean(jax.vmap(one)(batch, *keys)[0])
