"""Policy autoencoder: z_pi = E_pi({(s, a)}), a = D_pi(s, z_pi) (section 3.3)."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.config import PolicyAutoencoderOptions
from pdvf.core.arrays import Array, Scaler
from pdvf.core.networks import FeedForward, SetEncoder, unit
from pdvf.paper.trajectories import Trajectories, choose

DECODED = 16  # states of an episode whose action one gradient step predicts


class PolicyDecoder(eqx.Module):
    """D_pi: the action of the policy that an embedding stands for.

    It reads z_pi only through the products z_i z_j, so z and -z are one policy. W(z) = z' A z has the same symmetry;
    without it in the decoder a value function that is even would have to fit returns that are not, and the sign of
    the optimal embedding would be a guess (docs/decisions/0004-sign.md).
    """

    network: FeedForward
    observation: Scaler

    def __call__(self, observation: Array, z_pi: Array) -> Array:
        """Scaled action [a] for an observation [o] under z_pi [e]."""
        return self.network(jnp.concatenate([self.observation.scale(observation), features(z_pi)]))


class PolicyAutoencoder(eqx.Module):
    """Encodes the state-action pairs of an episode and reproduces the policy's decisions."""

    encoder: SetEncoder
    decoder: PolicyDecoder

    def encode(self, episode: Trajectories, set_size: int, key: Array, dropout: Array | None = None) -> Array:
        """z_pi [e] from at most `set_size` pairs of one episode [T, ...], drawn at random when it has more."""
        observation, decision, valid = episode.observation, episode.decision, episode.valid
        if set_size < valid.shape[0]:
            order = jnp.argsort(jnp.where(valid, jax.random.uniform(key, valid.shape), 2.0))[:set_size]
            observation, decision, valid = observation[order], decision[order], valid[order]
        scaled = self.decoder.observation.scale(observation)
        return self.encoder(jnp.concatenate([scaled, decision], axis=-1), valid, dropout)


def features(z_pi: Array) -> Array:
    """What a decoder sees of z_pi [e]."""
    rows, columns = jnp.triu_indices(z_pi.shape[-1])
    return z_pi[rows] * z_pi[columns] * jnp.sqrt(z_pi.shape[-1] * jnp.where(rows == columns, 1.0, 2.0))


def add_noise(z_pi: Array, noise: float, key: Array) -> Array:
    """Policy embeddings [..., e] near the given ones.

    A decoder that learns from these plays neighbours alike, which W needs: its best embedding is never exactly one of
    a training policy (docs/decisions/0005-value.md).
    """
    return unit(z_pi + noise * jax.random.normal(key, z_pi.shape))


def make(trajectories: Trajectories, options: PolicyAutoencoderOptions, key: Array) -> PolicyAutoencoder:
    """A fresh autoencoder with the scales of the data."""
    encoder_key, decoder_key = jax.random.split(key)
    o, a = trajectories.observation.shape[-1], trajectories.action.shape[-1]
    scaler = Scaler.from_data(trajectories.observation, trajectories.valid.astype(jnp.float32))
    inputs = o + features(jnp.zeros(options.embedding)).shape[0]
    return PolicyAutoencoder(
        SetEncoder(o + a, options.model, options.embedding, options.dropout, encoder_key),
        PolicyDecoder(FeedForward((inputs, options.decoder, options.decoder, a), decoder_key), scaler),
    )


def loss(
    model: PolicyAutoencoder,
    trajectories: Trajectories,
    options: PolicyAutoencoderOptions,
    key: Array,
    held_out: bool,
) -> Array:
    """Squared error of the decoded decisions for a batch of episodes, each encoded from a subset of its pairs."""
    count = options.batch
    choose_key, set_key, step_key, dropout_key, noise_key = jax.random.split(key, 5)
    batch = choose(trajectories, count, choose_key, held_out)

    def one(episode: Trajectories, set_key: Array, step_key: Array, dropout_key: Array, noise_key: Array) -> Array:
        z_pi = model.encode(episode, options.set_size, set_key, None if held_out else dropout_key)
        z_pi = add_noise(z_pi, options.noise, noise_key)
        chosen = jax.random.randint(step_key, (DECODED,), 0, jnp.sum(episode.valid))
        decoded = jax.vmap(model.decoder, in_axes=(0, None))(episode.observation[chosen], z_pi)
        return jnp.mean((decoded - episode.decision[chosen]) ** 2)

    keys = (jax.random.split(k, count) for k in (set_key, step_key, dropout_key, noise_key))
    return jnp.mean(jax.vmap(one)(batch, *keys))
