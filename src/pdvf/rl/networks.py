"""Policies: actor and critic of appendix A.3, and how observations and actions are scaled."""

from __future__ import annotations

import abc
from typing import Any, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array, Box, Scaler

Carry = TypeVar("Carry")


class Network(Protocol):
    """What PPO trains: a recurrent network, written for one episode. An actor has a `log_std` [a] as well."""

    observation: Scaler

    def initial_carry(self) -> Any:
        """What is carried into the first step, a pytree; the empty tuple for a feed-forward network."""
        ...

    def inputs(self, observation: Array, action: Array, reward: Array, first: Array) -> Array:
        """What the network sees [i]: begins with the observation [o]; the rest is of the step before, if there was."""
        ...

    def step(self, carry: Any, inputs: Array) -> tuple[Array, Any]:
        """Output and carry after one step."""
        ...

    def unroll(self, carry: Any, inputs: Array) -> tuple[Array, Any]:
        """Outputs [T, ...] and carries [T, ...] after each of the steps of a sequence [T, i]."""
        ...


class FeedForward(eqx.Module):
    """A recurrent network with an empty carry, which sees the observation alone."""

    @abc.abstractmethod
    def __call__(self, observation: Array) -> Array:
        """The output for an observation [o]."""

    def initial_carry(self) -> tuple[()]:
        """Nothing."""
        return ()

    def inputs(self, observation: Array, action: Array, reward: Array, first: Array) -> Array:
        """The observation [o]."""
        return observation

    def step(self, carry: Carry, inputs: Array) -> tuple[Array, Carry]:
        """The output of one step."""
        return self(inputs), carry

    def unroll(self, carry: Carry, inputs: Array) -> tuple[Array, Carry]:
        """The outputs of all steps [..., i] at once, in whatever axes they are."""
        outputs = self
        for _ in inputs.shape[:-1]:
            outputs = jax.vmap(outputs)
        return outputs(inputs), carry


class Actor(FeedForward):
    """Mean of a Gaussian policy: two tanh layers and a linear one. Acts in scaled units."""

    observation: Scaler
    layers: tuple[eqx.nn.Linear, ...]
    log_std: Array

    def __call__(self, observation: Array) -> Array:
        """Mean action [a] in scaled units, where the bounds are -1 and 1, for an observation [o]."""
        return feed_forward(self.layers, self.observation.scale(observation))

    def act(self, observation: Array) -> Array:
        """The action [a] that is carried out when nothing is sampled: the mean inside the bounds."""
        return jnp.clip(self(observation), -1.0, 1.0)


class Critic(FeedForward):
    """Value of an observation: two tanh layers and a linear one."""

    observation: Scaler
    layers: tuple[eqx.nn.Linear, ...]

    def __call__(self, observation: Array) -> Array:
        """Value [] of an observation [o]."""
        return feed_forward(self.layers, self.observation.scale(observation))[0]


class PartialView(FeedForward):
    """An actor or a critic that sees only some numbers of the observation: the two may see different ones."""

    observation: Scaler  # of the whole observation
    network: Any  # Actor | Critic, which takes scaled numbers
    seen: tuple[int, ...] = eqx.field(static=True)

    @property
    def log_std(self) -> Array:
        """Of an actor [a]."""
        return self.network.log_std

    def __call__(self, observation: Array) -> Array:
        """The output for the whole observation [o]."""
        return self.network(self.observation.scale(observation)[jnp.asarray(self.seen)])

    def alone(self) -> Any:
        """The network, for what it sees as it is: without the rest, and not scaled."""
        which = jnp.asarray(self.seen)
        scaler = Scaler(self.observation.centre[..., which], self.observation.width[..., which])
        return eqx.tree_at(lambda network: network.observation, self.network, scaler)


def make_partial_views(
    observation: Box, action: Box, hidden: int, key: Array, actor_sees: tuple[int, ...], critic_sees: tuple[int, ...]
) -> tuple[PartialView, PartialView]:
    """Fresh networks, each for its part of the observation."""
    whole, views = Scaler.from_box(observation), []
    for place, seen in enumerate((actor_sees, critic_sees)):
        networks = make_actor_critic(Box.symmetric(len(seen)), action, hidden, key)
        views.append(PartialView(whole, networks[place], seen))
    return views[0], views[1]


def make_actor_critic(observation: Box, action: Box, hidden: int, key: Array) -> tuple[Actor, Critic]:
    """Fresh networks; the critic starts at exactly 0.

    A sparse reward is about 1e-7 at first, so the noise of an ordinary initialisation of the critic would swamp
    every advantage (docs/decisions/0003-ppo.md).
    """
    actor_key, critic_key = jax.random.split(key)
    scaler = Scaler.from_box(observation)
    actor = Actor(scaler, _layers(observation.size, hidden, action.size, 0.01, actor_key), jnp.zeros(action.size))
    critic = Critic(scaler, _layers(observation.size, hidden, 1, 0.0, critic_key))
    return actor, critic


def _layers(inputs: int, hidden: int, outputs: int, last: float, key: Array) -> tuple[eqx.nn.Linear, ...]:
    keys = jax.random.split(key, 3)
    sizes = ((inputs, hidden, 2**0.5), (hidden, hidden, 2**0.5), (hidden, outputs, last))
    return tuple(_orthogonal(i, o, gain, k) for (i, o, gain), k in zip(sizes, keys, strict=True))


def _orthogonal(inputs: int, outputs: int, gain: float, key: Array) -> eqx.nn.Linear:
    linear_key, weight_key = jax.random.split(key)
    linear = eqx.nn.Linear(inputs, outputs, key=linear_key)
    tall = jax.random.normal(weight_key, (max(inputs, outputs), min(inputs, outputs)))
    basis = _orthonormal(tall)
    weight = gain * (basis if outputs >= inputs else basis.T)
    return eqx.tree_at(lambda m: (m.weight, m.bias), linear, (weight, jnp.zeros(outputs)))


@jax.custom_batching.sequential_vmap
def _orthonormal(tall: Array) -> Array:
    """Columns [m, n] of unit length at right angles, uniformly drawn when `tall` is normal.

    One matrix after the other: several batched QR decompositions in one program can wait for each other forever on a
    machine with as many cores as there are of them (docs/decisions/0002-two-cores.md).
    """
    q, r = jnp.linalg.qr(tall)
    return q * jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)


def feed_forward(layers: tuple[eqx.nn.Linear, ...], x: Array) -> Array:
    """What layers with tanh between them make of inputs."""
    for layer in layers[:-1]:
        x = jnp.tanh(layer(x))
    return layers[-1](x)
