"""Proximal policy optimisation, written for one policy; the ensemble is a leading axis added by `vmap`.

Section 3.2 and appendices A.3, B and C of the paper. Policies are recurrent (`networks.Network`): gradients flow back
through the steps of a sequence. A feed-forward policy carries nothing, and learns from single steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from pdvf.config import PPOOptions
from pdvf.core.arrays import Array, Box, Scaler
from pdvf.core.objective import objective_of
from pdvf.core.running_stats import RunningMeanStd, discounted_returns, update_stats
from pdvf.engines.base import Engine
from pdvf.engines.rollout import where
from pdvf.families.base import State
from pdvf.rl.gae import advantages
from pdvf.rl.networks import Network, make_actor_critic

MakeNetworks = Callable[[Box, Box, int, Array], tuple[Any, Any]]
"""From bounds of observation and action, width and key to an actor and a critic, called as those of `networks` are."""


class TrainState(NamedTuple):
    """Everything a policy's training needs to go on: stopped and resumed, it gives the same bits."""

    actor: Any
    critic: Any
    optimiser: optax.OptState
    simulator: State
    inputs: Array  # [n, i] what the networks see next
    carry: tuple[Any, Any]  # [n, ...] of actor and critic
    time: Array  # [n] steps made in the episode under way
    score: Any  # [n, ...] an `Objective`: what the episode under way has earned
    key: Array
    update: Array  # [] updates made
    discounted: Array  # [n] discounted return so far, for the scale of rewards
    return_stats: RunningMeanStd  # of discounted returns


class Batch(NamedTuple):
    """Steps of one update: sequences [m, T, ...] and what is carried into each, or steps [m, ...] if nothing is."""

    carry: tuple[Any, Any]  # of actor and critic
    inputs: Array
    action: Array  # scaled, as sampled, before clipping
    log_prob: Array
    advantage: Array
    target: Array


class Metrics(NamedTuple):
    """Scalars of one update."""

    episode_return: Array  # mean over the episodes that ended; not a number when none did
    episodes: Array
    policy_loss: Array
    value_loss: Array
    std: Array


def initialise(
    engine: Engine, options: PPOOptions, context: Array, key: Array, make_networks: MakeNetworks = make_actor_critic
) -> TrainState:
    """A fresh policy for the environment with this context [c]; `make_networks` makes its actor and critic."""
    network_key, reset_key, key = jax.random.split(key, 3)
    family = engine.family
    actor, critic = make_networks(family.observation, family.action, options.hidden, network_key)
    n = options.environments
    simulator, observation = engine.reset(jax.random.split(reset_key, n), jnp.tile(context, (n, 1)))
    zeros = jnp.zeros(n)
    time = jnp.arange(n, dtype=jnp.int32) * family.horizon // n if options.stagger else zeros.astype(jnp.int32)
    carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), (actor.initial_carry(), critic.initial_carry()))
    return TrainState(
        actor,
        critic,
        _optimiser(options).init(eqx.filter((actor, critic), _is_trainable((actor, critic)))),
        simulator,
        jax.vmap(actor.inputs)(observation, jnp.zeros((n, family.action.size)), zeros, jnp.ones(n)),
        carry,
        time,
        objective_of(family).start(n),
        key,
        jnp.zeros((), jnp.int32),
        zeros,
        RunningMeanStd.none(),
    )


def train(
    engine: Engine, options: PPOOptions, context: Array, state: TrainState, shuffle: Array, updates: int
) -> tuple[TrainState, Metrics]:
    """Some updates of one policy; metrics are [updates].

    The key `shuffle` orders the minibatches. An ensemble shares it, so that one sort serves every policy: sorting
    for each of them would take a quarter of the time on a CPU.
    """

    def update(state: TrainState, shuffle: Array) -> tuple[TrainState, Metrics]:
        key, collect_key = jax.random.split(state.key)
        state, batch, episode_return, episodes = _collect(engine, options, context, state, collect_key)
        state, policy_loss, value_loss = _learn(options, state, batch, shuffle)
        state = _rescale(options, state, batch)
        state = state._replace(key=key, update=state.update + 1)
        std = jnp.mean(jnp.exp(state.actor.log_std))
        return state, Metrics(episode_return, episodes, policy_loss, value_loss, std)

    return jax.lax.scan(update, state, jax.random.split(shuffle, updates))


def log_density(mean: Array, log_std: Array, action: Array) -> Array:
    """Log density [...] of a Gaussian with diagonal covariance at actions [..., a]."""
    scaled = (action - mean) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * scaled**2 - log_std - 0.5 * jnp.log(2 * jnp.pi), axis=-1)


def loss(networks: tuple[Any, Any], batch: Batch, options: PPOOptions) -> tuple[Array, tuple[Array, Array]]:
    """Clipped surrogate, critic's squared error and entropy bonus."""
    actor, critic = networks
    mean, _ = _unroll(actor, batch.carry[0], batch.inputs, 0)
    value, _ = _unroll(critic, batch.carry[1], batch.inputs, 0)
    ratio = jnp.exp(log_density(mean, actor.log_std, batch.action) - batch.log_prob)
    clipped = jnp.clip(ratio, 1 - options.clip, 1 + options.clip)
    policy_loss = -jnp.mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
    value_loss = 0.5 * jnp.mean((value.reshape(batch.target.shape) - batch.target) ** 2)
    entropy = jnp.sum(actor.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e))
    total = policy_loss + options.value_coefficient * value_loss - options.entropy_coefficient * entropy
    return total, (policy_loss, value_loss)


def _collect(engine: Engine, options: PPOOptions, context: Array, state: TrainState, key: Array):
    """Plays T steps in n copies of the environment, and estimates advantages."""
    n, horizon = options.environments, engine.family.horizon
    contexts = jnp.tile(context, (n, 1))
    action_scaler = Scaler.from_box(engine.family.action)
    std, zeros = jnp.exp(state.actor.log_std), jnp.zeros(n)
    noise_key, reset_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (options.rollout, n, engine.family.action.size))
    reset_keys = jax.random.split(reset_key, options.rollout)
    see, unscored = jax.vmap(state.actor.inputs), objective_of(engine.family).start(n)

    def step(carry, row):
        (simulator, inputs, time, score), memory = carry
        noise_t, reset_key_t = row
        mean, memory = jax.vmap(state.actor.step)(memory, inputs)
        action = mean + std * noise_t
        clipped = jnp.clip(action, -1, 1)
        simulator, outcome = engine.step(contexts, simulator, action_scaler.unscale(clipped))
        time, score = time + 1, score.add(outcome.reward, True)
        stopped = outcome.terminated | (time >= horizon)
        following = see(outcome.observation, clipped, outcome.reward, zeros)
        fresh, observation = engine.reset(jax.random.split(reset_key_t, n), contexts)
        again = (fresh, see(observation, jnp.zeros_like(clipped), zeros, zeros + 1.0), jnp.zeros_like(time), unscored)
        carry = jax.tree.map(partial(where, stopped), again, (simulator, following, time, score)), memory
        terminated, stopped = outcome.terminated.astype(jnp.float32), stopped.astype(jnp.float32)
        return carry, (inputs, action, following, outcome.reward, terminated, stopped, score.worth)

    carry = ((state.simulator, state.inputs, state.time, state.score), state.carry[0])
    carry, rows = jax.lax.scan(step, carry, (noise, reset_keys))
    inputs, action, following, reward, terminated, stopped, returns = rows
    if options.normalise_rewards:
        discounted, all_ = discounted_returns(state.discounted, reward, stopped, options.discount)
        stats = update_stats(state.return_stats, all_[..., None])
        reward = reward / (stats.std[0] + 1e-4)
        state = state._replace(discounted=discounted, return_stats=stats)
    values, memory = _unroll(state.critic, state.carry[1], inputs, 1)
    next_values, _ = jax.vmap(jax.vmap(state.critic.step))(memory, following)
    values, next_values = values.reshape(reward.shape), next_values.reshape(reward.shape)
    advantage = advantages(reward, values, next_values, terminated, stopped, options.discount, options.gae_lambda)
    mean, _ = _unroll(state.actor, state.carry[0], inputs, 1)
    log_prob = log_density(mean, state.actor.log_std, action)
    batch = Batch(state.carry, *_sequences(state.carry, (inputs, action, log_prob, advantage, advantage + values)))
    episodes = jnp.sum(stopped)
    (simulator, inputs, time, score), actor_carry = carry
    last = actor_carry, jax.tree.map(lambda x: x[-1], memory)
    state = state._replace(simulator=simulator, inputs=inputs, carry=last, time=time, score=score)
    return state, batch, jnp.sum(returns * stopped) / episodes, episodes


def _unroll(network: Network, carry: Any, inputs: Array, axis: int) -> tuple[Array, Any]:
    """Outputs and carries of a network for many sequences, which lie along `axis` of the inputs."""
    if not jax.tree.leaves(carry):
        return network.unroll(carry, inputs)
    return jax.vmap(network.unroll, in_axes=(0, axis), out_axes=axis)(carry, inputs)


def _sequences(carry: Any, rows: tuple[Array, ...]) -> tuple[Array, ...]:
    """What minibatches are drawn from, of rows [T, n, ...]: sequences [n, T, ...], or steps if nothing is carried."""
    if not jax.tree.leaves(carry):
        return tuple(x.reshape(-1, *x.shape[2:]) for x in rows)
    return tuple(jnp.swapaxes(x, 0, 1) for x in rows)


def _learn(options: PPOOptions, state: TrainState, batch: Batch, key: Array):
    """Epochs of minibatches; advantages are normalised over the whole batch."""
    centred = batch.advantage - jnp.mean(batch.advantage)
    batch = batch._replace(advantage=centred / (jnp.std(batch.advantage) + 1e-12))
    size = batch.advantage.shape[0]
    optimiser = _optimiser(options)
    trainable, fixed = eqx.partition((state.actor, state.critic), _is_trainable((state.actor, state.critic)))

    def minibatch(carry, chosen: Batch):
        trainable, optimiser_state = carry
        gradient, losses = jax.grad(lambda t: loss(eqx.combine(t, fixed), chosen, options), has_aux=True)(trainable)
        updates, optimiser_state = optimiser.update(gradient, optimiser_state)
        return (optax.apply_updates(trainable, updates), optimiser_state), losses

    def epoch(carry, key: Array):
        order = jax.random.permutation(key, size).reshape(options.minibatches, -1)
        return jax.lax.scan(minibatch, carry, jax.tree.map(lambda x: x[order], batch))

    carry = (trainable, state.optimiser)
    (trainable, optimiser_state), losses = jax.lax.scan(epoch, carry, jax.random.split(key, options.epochs))
    networks: Any = eqx.combine(trainable, fixed)
    actor, critic = networks
    policy_loss, value_loss = (jnp.mean(x) for x in losses)
    return state._replace(actor=actor, critic=critic, optimiser=optimiser_state), policy_loss, value_loss


def _rescale(options: PPOOptions, state: TrainState, batch: Batch) -> TrainState:
    """Both networks scale observations by all that the policy has seen, from the next update on."""
    if not options.normalise_observations:
        return state
    before = state.critic.observation
    seen = state.update.astype(jnp.float32) * options.environments * options.rollout
    stats = RunningMeanStd(seen, before.centre, before.width**2)
    now = update_stats(stats, batch.inputs[..., : before.centre.shape[-1]])
    after = Scaler(now.mean, jnp.maximum(now.std, 1e-3))
    actor, critic = (eqx.tree_at(lambda network: network.observation, x, after) for x in (state.actor, state.critic))
    return state._replace(actor=actor, critic=critic)


def _optimiser(options: PPOOptions) -> optax.GradientTransformation:
    """Adam with a step size that falls linearly to 0 over the whole training.

    Its epsilon of 1e-5 is part of the recipe: while returns are far below it, the critic hardly moves.
    """
    updates = options.updates_per_checkpoint * options.checkpoints
    schedule = optax.linear_schedule(options.learning_rate, 0.0, updates * options.epochs * options.minibatches)
    return optax.chain(optax.clip_by_global_norm(options.max_gradient_norm), optax.adam(schedule, eps=1e-5))


def _is_trainable(networks: tuple[Any, Any]):
    """A tree of booleans: weights are trained, scalers are not."""
    return jax.tree.map(
        lambda leaf: not isinstance(leaf, Scaler), networks, is_leaf=lambda leaf: isinstance(leaf, Scaler)
    )
