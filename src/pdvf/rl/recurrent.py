"""PPO for a recurrent policy: gradients flow back through the steps of a rollout, minibatches are whole sequences.

Written for one policy, like `ppo`; the ensemble is a leading axis. An episode's hidden state begins at 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from pdvf.config import PPOOptions
from pdvf.core.arrays import Array, Box, Scaler
from pdvf.core.running_stats import RunningMeanStd
from pdvf.engines.base import Engine
from pdvf.engines.rollout import where
from pdvf.families.base import State
from pdvf.rl.gae import advantages
from pdvf.rl.ppo import Metrics, _optimiser, log_density, rescaled, scale_rewards


class RecurrentNetwork(eqx.Module):
    """A tanh layer, a gated recurrent unit and a linear layer: appendix A.3 with a memory for its second layer.

    Its input is the observation, the last action (scaled), the last reward, and 1 at the first step of an episode.
    """

    observation: Scaler
    first: eqx.nn.Linear
    gates: eqx.nn.Linear  # from the layer below to the three gates
    memory: eqx.nn.Linear  # from the hidden state to the three gates
    last: eqx.nn.Linear

    def __init__(self, observation: Box, action: Box, hidden: int, outputs: int, gain: float, key: Array):
        keys = jax.random.split(key, 4)
        self.observation = Scaler.from_box(observation)
        self.first = eqx.nn.Linear(observation.size + action.size + 2, hidden, key=keys[0])
        self.gates = eqx.nn.Linear(hidden, 3 * hidden, key=keys[1])
        self.memory = eqx.nn.Linear(hidden, 3 * hidden, key=keys[2])
        last = eqx.nn.Linear(hidden, outputs, key=keys[3])
        self.last = jax.tree.map(lambda w: gain * w, last)

    def __call__(self, hidden: Array, seen: Array) -> tuple[Array, Array]:
        """Output and hidden state [h] after one step, for the hidden state before it and an input [i]."""
        hidden = self._recur(hidden, self._below(seen), seen[-1])
        return self.last(hidden), hidden

    def unroll(self, hidden: Array, seen: Array) -> Array:
        """Outputs [T, ...] for a sequence of inputs [T, i] from a hidden state [h] on."""

        def step(hidden: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            hidden = self._recur(hidden, *row)
            return hidden, hidden

        _, states = jax.lax.scan(step, hidden, (jax.vmap(self._below)(seen), seen[:, -1]))
        return jax.vmap(self.last)(states)

    def _below(self, seen: Array) -> Array:
        """What the gates get from the input; none of it is recurrent."""
        scaler = jax.lax.stop_gradient(self.observation)
        o = scaler.centre.shape[-1]
        scaled = jnp.concatenate([scaler.scale(seen[:o]), seen[o:]])
        return self.gates(jnp.tanh(self.first(scaled)))

    def _recur(self, hidden: Array, below: Array, first: Array) -> Array:
        hidden = hidden * (1.0 - first)
        reset_x, update_x, new_x = jnp.split(below, 3)
        reset_h, update_h, new_h = jnp.split(self.memory(hidden), 3)
        update = jax.nn.sigmoid(update_x + update_h)
        new = jnp.tanh(new_x + jax.nn.sigmoid(reset_x + reset_h) * new_h)
        return (1.0 - update) * new + update * hidden


class RecurrentActor(eqx.Module):
    """Mean network and spread of a recurrent Gaussian policy."""

    network: RecurrentNetwork
    log_std: Array


class RecurrentState(NamedTuple):
    """Everything a recurrent policy's training needs to go on."""

    actor: RecurrentActor
    critic: RecurrentNetwork
    optimiser: optax.OptState
    simulator: State
    seen: Array  # [n, i] the input that comes next
    hidden: tuple[Array, Array]  # [n, h] of actor and critic
    time: Array  # [n]
    returns: Array  # [n]
    key: Array
    update: Array  # [] updates made
    discounted: Array  # [n] discounted return so far, for the scale of rewards
    return_stats: RunningMeanStd  # of discounted returns


class Sequences(NamedTuple):
    """Steps of one update, [n, T, ...], and the hidden states before them."""

    hidden: tuple[Array, Array]  # [n, h]
    seen: Array
    action: Array
    log_prob: Array
    advantage: Array
    target: Array


def see(observation: Array, action: Array, reward: Array, first: Array) -> Array:
    """The network's input [i]: observation [o], last action [a] and reward [], whether it is a first step []."""
    return jnp.concatenate([observation, action, reward[None], first[None]])


def initialise(engine: Engine, options: PPOOptions, context: Array, key: Array) -> RecurrentState:
    """A fresh recurrent policy."""
    actor_key, critic_key, reset_key, key = jax.random.split(key, 4)
    observation, action = engine.family.observation, engine.family.action
    actor = RecurrentActor(
        RecurrentNetwork(observation, action, options.hidden, action.size, 0.01, actor_key), jnp.zeros(action.size)
    )
    critic = RecurrentNetwork(observation, action, options.hidden, 1, 0.0, critic_key)
    networks: Any = (actor, critic)
    n = options.environments
    simulator, start = engine.reset(jax.random.split(reset_key, n), jnp.tile(context, (n, 1)))
    nothing = jnp.zeros((n, action.size)), jnp.zeros(n), jnp.ones(n)
    hidden = jnp.zeros((n, options.hidden)), jnp.zeros((n, options.hidden))
    none = jnp.zeros(n, jnp.int32)
    return RecurrentState(
        actor,
        critic,
        _optimiser(options).init(networks),
        simulator,
        jax.vmap(see)(start, *nothing),
        hidden,
        jnp.arange(n, dtype=jnp.int32) * engine.family.horizon // n if options.stagger else none,
        jnp.zeros(n),
        key,
        jnp.zeros((), jnp.int32),
        jnp.zeros(n),
        RunningMeanStd.none(),
    )


def train(
    engine: Engine, options: PPOOptions, context: Array, state: RecurrentState, shuffle: Array, updates: int
) -> tuple[RecurrentState, Metrics]:
    """Some updates of one policy; metrics are [updates]."""

    def update(state: RecurrentState, shuffle: Array) -> tuple[RecurrentState, Metrics]:
        key, collect_key = jax.random.split(state.key)
        state, batch, episode_return, episodes = _collect(engine, options, context, state, collect_key)
        state, policy_loss, value_loss = _learn(options, state, batch, shuffle)
        state = _rescale(options, state, batch)._replace(update=state.update + 1)
        std = jnp.mean(jnp.exp(state.actor.log_std))
        return state._replace(key=key), Metrics(episode_return, episodes, policy_loss, value_loss, std)

    return jax.lax.scan(update, state, jax.random.split(shuffle, updates))


def _collect(engine: Engine, options: PPOOptions, context: Array, state: RecurrentState, key: Array):
    """Plays T steps in n copies of the environment, and estimates advantages."""
    n, family = options.environments, engine.family
    contexts = jnp.tile(context, (n, 1))
    scaler = Scaler.from_box(family.action)
    std = jnp.exp(state.actor.log_std)
    noise_key, reset_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (options.rollout, n, family.action.size))
    actor, critic = jax.vmap(state.actor.network), jax.vmap(state.critic)

    def step(carry, row):
        simulator, seen, (actor_hidden, critic_hidden), time, returns = carry
        noise_t, reset_key_t = row
        mean, actor_hidden = actor(actor_hidden, seen)
        value, critic_hidden = critic(critic_hidden, seen)
        action = mean + std * noise_t
        done = jnp.clip(action, -1, 1)
        simulator, outcome = engine.step(contexts, simulator, scaler.unscale(done))
        time, returns = time + 1, returns + outcome.reward
        stopped = outcome.terminated | (time >= family.horizon)
        zeros = jnp.zeros(n)
        after = jax.vmap(see)(outcome.observation, done, outcome.reward, zeros)
        next_value, _ = critic(critic_hidden, after)
        fresh, start = engine.reset(jax.random.split(reset_key_t, n), contexts)
        simulator = jax.tree.map(lambda a, b: where(stopped, a, b), fresh, simulator)
        begun = jax.vmap(see)(start, jnp.zeros_like(done), zeros, zeros + 1.0)
        carry = (
            simulator,
            where(stopped, begun, after),
            (actor_hidden, critic_hidden),  # the flag of a first step clears them
            jnp.where(stopped, 0, time),
            jnp.where(stopped, 0.0, returns),
        )
        log_prob = log_density(mean, state.actor.log_std, action)
        flags = outcome.terminated.astype(jnp.float32), stopped.astype(jnp.float32)
        return carry, (seen, action, log_prob, value[:, 0], next_value[:, 0], outcome.reward, *flags, returns)

    carry = (state.simulator, state.seen, state.hidden, state.time, state.returns)
    carry, rows = jax.lax.scan(step, carry, (noise, jax.random.split(reset_key, options.rollout)))
    seen, action, log_prob, value, next_value, reward, terminated, stopped, returns = rows
    if options.normalise_rewards:
        reward, discounted, return_stats = scale_rewards(options, state.discounted, state.return_stats, reward, stopped)
        state = state._replace(discounted=discounted, return_stats=return_stats)
    advantage = advantages(reward, value, next_value, terminated, stopped, options.discount, options.gae_lambda)
    sequences = (seen, action, log_prob, advantage, advantage + value)
    batch = Sequences(state.hidden, *(jnp.swapaxes(x, 0, 1) for x in sequences))
    episodes = jnp.sum(stopped)
    simulator, seen, hidden, time, running = carry
    state = state._replace(simulator=simulator, seen=seen, hidden=hidden, time=time, returns=running)
    return state, batch, jnp.sum(returns * stopped) / episodes, episodes


def _rescale(options: PPOOptions, state: RecurrentState, batch: Sequences) -> RecurrentState:
    """Both networks scale observations by all that the policy has seen, from the next update on."""
    if not options.normalise_observations:
        return state
    size = state.critic.observation.centre.shape[-1]
    scaler = rescaled(state.critic.observation, state.update, batch.seen[..., :size])
    return state._replace(
        actor=eqx.tree_at(lambda a: a.network.observation, state.actor, scaler),
        critic=eqx.tree_at(lambda c: c.observation, state.critic, scaler),
    )


def loss(
    networks: tuple[RecurrentActor, RecurrentNetwork], batch: Sequences, options: PPOOptions
) -> tuple[Array, tuple[Array, Array]]:
    """PPO's loss for sequences [m, T, ...]."""
    actor, critic = networks
    mean = jax.vmap(actor.network.unroll)(batch.hidden[0], batch.seen)
    value = jax.vmap(critic.unroll)(batch.hidden[1], batch.seen)[..., 0]
    ratio = jnp.exp(log_density(mean, actor.log_std, batch.action) - batch.log_prob)
    clipped = jnp.clip(ratio, 1 - options.clip, 1 + options.clip)
    policy_loss = -jnp.mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
    value_loss = 0.5 * jnp.mean((value - batch.target) ** 2)
    entropy = jnp.sum(actor.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e))
    total = policy_loss + options.value_coefficient * value_loss - options.entropy_coefficient * entropy
    return total, (policy_loss, value_loss)


def _learn(options: PPOOptions, state: RecurrentState, batch: Sequences, key: Array):
    """Epochs of minibatches; advantages are normalised over the whole batch."""
    centred = batch.advantage - jnp.mean(batch.advantage)
    batch = batch._replace(advantage=centred / (jnp.std(batch.advantage) + 1e-12))
    optimiser = _optimiser(options)

    def minibatch(carry, chosen: Sequences):
        networks, optimiser_state = carry
        gradient, losses = jax.grad(loss, has_aux=True)(networks, chosen, options)
        updates, optimiser_state = optimiser.update(gradient, optimiser_state)
        return (optax.apply_updates(networks, updates), optimiser_state), losses

    def epoch(carry, key: Array):
        order = jax.random.permutation(key, batch.advantage.shape[0]).reshape(options.minibatches, -1)
        return jax.lax.scan(minibatch, carry, jax.tree.map(lambda x: x[order], batch))

    carry: Any = ((state.actor, state.critic), state.optimiser)
    carry, losses = jax.lax.scan(epoch, carry, jax.random.split(key, options.epochs))
    (actor, critic), optimiser_state = carry
    policy_loss, value_loss = (jnp.mean(x) for x in losses)
    return state._replace(actor=actor, critic=critic, optimiser=optimiser_state), policy_loss, value_loss
