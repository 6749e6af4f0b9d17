"""A gated recurrent unit for actor and critic: appendix A.3 with a memory for its second layer."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array, Box, Scaler


class RecurrentNetwork(eqx.Module):
    """A tanh layer, a gated recurrent unit and a linear layer.

    Its input is the observation, the last action (scaled), the last reward, and 1 at the first step of an episode,
    which clears the hidden state.
    """

    observation: Scaler
    first: eqx.nn.Linear
    gates: eqx.nn.Linear  # from the layer below to the three gates
    memory: eqx.nn.Linear  # from the hidden state to the three gates
    last: eqx.nn.Linear

    def initial_carry(self) -> Array:
        """An empty hidden state [h]."""
        return jnp.zeros(self.last.weight.shape[-1])

    def inputs(self, observation: Array, action: Array, reward: Array, first: Array) -> Array:
        """Observation [o], last action [a] and reward [], whether it is a first step []: [i]."""
        return jnp.concatenate([observation, action, reward[None], first[None]])

    def step(self, carry: Array, inputs: Array) -> tuple[Array, Array]:
        """Output and hidden state [h] after one step, for the hidden state before it and an input [i]."""
        hidden = self._recur(carry, self._below(inputs), inputs[-1])
        return self.last(hidden), hidden

    def unroll(self, carry: Array, inputs: Array) -> tuple[Array, Array]:
        """Outputs [T, ...] and hidden states [T, h] for a sequence of inputs [T, i] from a hidden state [h] on."""

        def step(hidden: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            hidden = self._recur(hidden, *row)
            return hidden, hidden

        _, states = jax.lax.scan(step, carry, (jax.vmap(self._below)(inputs), inputs[:, -1]))
        return jax.vmap(self.last)(states), states

    def _below(self, inputs: Array) -> Array:
        """What the gates get from the input; none of it is recurrent."""
        o = self.observation.centre.shape[-1]
        scaled = jnp.concatenate([self.observation.scale(inputs[:o]), inputs[o:]])
        return self.gates(jnp.tanh(self.first(scaled)))

    def _recur(self, hidden: Array, below: Array, first: Array) -> Array:
        hidden = hidden * (1.0 - first)
        reset_x, update_x, new_x = jnp.split(below, 3)
        reset_h, update_h, new_h = jnp.split(self.memory(hidden), 3)
        update = jax.nn.sigmoid(update_x + update_h)
        new = jnp.tanh(new_x + jax.nn.sigmoid(reset_x + reset_h) * new_h)
        return (1.0 - update) * new + update * hidden


class RecurrentActor(RecurrentNetwork):
    """Mean network and standard deviation of a recurrent Gaussian policy."""

    log_std: Array


def make_recurrent(observation: Box, action: Box, hidden: int, key: Array) -> tuple[RecurrentActor, RecurrentNetwork]:
    """Fresh actor and critic; like that of `networks`, the critic starts at exactly 0."""
    actor_key, critic_key = jax.random.split(key)
    actor = RecurrentActor(
        *layers(observation, action, hidden, action.size, 0.01, actor_key), log_std=jnp.zeros(action.size)
    )
    return actor, RecurrentNetwork(*layers(observation, action, hidden, 1, 0.0, critic_key))


def layers(
    observation: Box, action: Box, hidden: int, outputs: int, gain: float, key: Array
) -> tuple[Scaler, eqx.nn.Linear, eqx.nn.Linear, eqx.nn.Linear, eqx.nn.Linear]:
    """Scaler and layers of a `RecurrentNetwork`, the last of them times `gain`."""
    keys = jax.random.split(key, 4)
    last = eqx.nn.Linear(hidden, outputs, key=keys[3])
    return (
        Scaler.from_box(observation),
        eqx.nn.Linear(observation.size + action.size + 2, hidden, key=keys[0]),
        eqx.nn.Linear(hidden, 3 * hidden, key=keys[1]),
        eqx.nn.Linear(hidden, 3 * hidden, key=keys[2]),
        jax.tree.map(lambda w: gain * w, last),
    )
