"""RMA (after Kumar et al. 2021), a reference of ours: the Oracle's policy with the context estimated from history.

The estimator learns by regression on the Oracle's rollouts in the training environments, then on its own: the states
it will see are those that its estimates lead to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core import fitting as fit
from pdvf.core.arrays import Array, Scaler
from pdvf.core.devices import shard_over_devices
from pdvf.core.networks import FeedForward
from pdvf.engines.rollout import play
from pdvf.methods.base import (
    Feedback,
    Hidden,
    Inputs,
    KeepsMemory,
    Look,
    Method,
    Transitions,
    agent_artefact,
    one_policy,
)
from pdvf.methods.oracle import ORACLE, ContextConditioned, context_features
from pdvf.methods.play import acting_agent, begin_agent
from pdvf.paper import untrained
from pdvf.paper.pipeline import Problem
from pdvf.rl.networks import Actor

EPISODES = 16  # of each training environment in a round
BATCH = 512  # windows of history in a gradient step
LEARNING_RATE = 1e-3


class Estimator(eqx.Module):
    """From the last H transitions to features of the context: each transition alone, their mean, then together."""

    observation: Scaler
    change: Scaler
    each: FeedForward
    together: FeedForward

    def __call__(self, observation: Array, action: Array, next_observation: Array, valid: Array) -> Array:
        """Features [f] from transitions [H, ...] where valid [H]."""
        observation_scale, change_scale = jax.lax.stop_gradient((self.observation, self.change))
        change = change_scale.scale(next_observation - observation)
        rows = jnp.concatenate([observation_scale.scale(observation), action, change], axis=-1)
        counted = valid[:, None].astype(rows.dtype)
        total = jnp.sum(jax.nn.relu(jax.vmap(self.each)(rows)) * counted, axis=0)
        count = jnp.sum(counted)
        some = jnp.minimum(count, 1.0)[None]
        return self.together(jnp.concatenate([total / jnp.maximum(count, 1.0), some]))


def make_estimator(
    observation: Scaler, change: Scaler, action: int, features: int, hidden: int, each_key: Array, together_key: Array
) -> Estimator:
    """An untrained estimator."""
    inputs = 2 * observation.centre.shape[-1] + action
    each = FeedForward((inputs, hidden, hidden), each_key)
    return Estimator(observation, change, each, FeedForward((hidden + 1, hidden, features), together_key))


class History(NamedTuple):
    """The last H transitions, the newest last, and what the next one begins with."""

    observation: Array  # [H, o]
    action: Array  # [H, a]
    next_observation: Array  # [H, o]
    valid: Array  # [H]
    last: Array  # [o]


class OnlineAgent(KeepsMemory):
    """The Oracle's policy, told an estimate instead of the truth, at every step anew."""

    actor: Actor
    estimator: Estimator
    history: int = eqx.field(static=True)

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> History:
        """An empty history."""
        o, a = observation.shape[-1], self.actor.log_std.shape[-1]
        rows = jnp.zeros((self.history, o))
        return History(rows, jnp.zeros((self.history, a)), rows, jnp.zeros(self.history, bool), observation)

    def act(self, memory: History, observation: Array, feedback: Feedback) -> tuple[Array, History]:
        """Takes in the last transition, estimates, acts."""
        made = feedback.first < 0.5
        latest = memory.last, feedback.action, observation, made
        push = lambda rows, row: jnp.where(made, jnp.concatenate([rows[1:], row[None]]), rows)  # noqa: E731
        history: Any = jax.tree.map(push, memory[:4], latest)
        feature = self.estimator(*history)
        return self.actor(jnp.concatenate([observation, feature])), History(*history, last=observation)


class Regression(NamedTuple):
    """The training under way, for one seed."""

    fit: fit.Fit[Estimator]
    rounds: Transitions  # [R, n, T, ...] every round so far
    filled: Array  # [] rounds


@dataclass(frozen=True)
class EstimatorTraining:
    """Rounds of playing with the Oracle's policy and regression of the context on history."""

    problem: Problem
    oracle: ContextConditioned  # [S, ...]
    key: Array
    name = "rma"

    @property
    def stages(self) -> int:
        """One for each round."""
        return self.problem.config.baselines.estimation_rounds

    @property
    def _contexts(self) -> Array:
        return jnp.repeat(jnp.asarray(self.problem.contexts), EPISODES, axis=0)

    def start(self) -> Regression:
        """Untrained estimators, scaled by a round of the Oracle with the true context."""
        keys = jax.random.split(self.key, self.oracle.centre.shape[0])
        return jax.vmap(self._start)(self.oracle, keys)

    def _start(self, oracle: ContextConditioned, key: Array) -> Regression:
        play_key, each_key, together_key, fit_key = jax.random.split(key, 4)
        truth = self._truth(oracle)
        steps = self._play(oracle, play_key)
        weight = steps.valid.astype(jnp.float32)
        model = make_estimator(
            Scaler.from_data(steps.observation, weight),
            Scaler.from_data(steps.next_observation - steps.observation, weight),
            steps.action.shape[-1],
            truth.shape[-1],
            self.problem.config.ppo.hidden,
            each_key,
            together_key,
        )
        rounds = jax.tree.map(lambda x: jnp.zeros((self.stages, *x.shape), x.dtype).at[0].set(x), steps)
        return Regression(fit.start(model, self._optimiser, fit_key), rounds, jnp.ones((), jnp.int32))

    def advance(self, state: Regression, stage: int) -> tuple[Regression, dict[str, Any]]:
        """Regression on the rounds there are, then the next round, played with estimates."""
        seeds = self.oracle.centre.shape[0]
        keys = jax.random.split(jax.random.fold_in(self.key, 1), seeds)
        state, metrics = self._round((), (self.oracle, state, keys))
        played = self.problem.transfer_steps(seeds, EPISODES) * (2 if stage == 0 else 1)  # `start` plays too
        return state, metrics | {"steps": float(played)}

    @cached_property
    def _round(self):
        def one(oracle: ContextConditioned, state: Regression, key: Array) -> tuple[Regression, dict[str, Array]]:
            truth = self._truth(oracle)

            def loss(model: Estimator, key: Array) -> Array:
                return self._loss(model, state.rounds, state.filled, truth, key)

            updates = self.problem.config.baselines.estimation_updates
            trained, metrics = fit.advance(state.fit, self._optimiser, loss, loss, updates)
            play_key = jax.random.fold_in(key, state.filled)
            agent = OnlineAgent(oracle.actor, trained.model, self.problem.config.baselines.history)
            steps = self._play(agent, play_key)
            # What the last round has played is not learned from: it is written past the end, which changes nothing.
            rounds = jax.tree.map(lambda all_, new: all_.at[state.filled].set(new), state.rounds, steps)
            return Regression(trained, rounds, jnp.minimum(state.filled + 1, self.stages)), metrics

        return shard_over_devices(lambda _, split: jax.vmap(one)(*split))

    def _truth(self, oracle: ContextConditioned) -> Array:
        """Features [n, f] of every episode's context, as the Oracle is told them."""
        names = self.problem.engine.family.context_names
        return (context_features(names, self._contexts) - oracle.centre) / oracle.width

    def _play(self, agent: ContextConditioned | OnlineAgent, key: Array) -> Transitions:
        """Steps [n, T, ...] of an agent with its policy's exploration noise; it is told the context."""
        begin_key, play_key = jax.random.split(key)
        engine, contexts, own = self.problem.engine, self._contexts, acting_agent(agent)
        started = begin_agent(engine, agent, contexts, Hidden(jnp.arange(contexts.shape[0]), contexts), begin_key)

        def act(memory: Any, observation: Array, feedback: Feedback, key: Array) -> tuple[Array, Any]:
            (noise_key,) = jax.random.split(key, 1)
            mean, memory = own(memory, observation, feedback, None)
            return mean + jnp.exp(agent.actor.log_std) * jax.random.normal(noise_key, mean.shape), memory

        _, steps = play(engine, contexts, started, act, play_key, engine.family.horizon)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), steps)

    def _loss(self, model: Estimator, rounds: Transitions, filled: Array, truth: Array, key: Array) -> Array:
        """Squared error of the estimate from random windows of random episodes."""
        length = self.problem.config.baselines.history
        round_key, episode_key, end_key = jax.random.split(key, 3)
        r = jax.random.randint(round_key, (BATCH,), 0, filled)
        n = jax.random.randint(episode_key, (BATCH,), 0, truth.shape[0])
        lived = jnp.sum(rounds.valid[r, n], axis=-1)
        end = jax.random.randint(end_key, (BATCH,), 0, lived + 1)  # transitions before `end` have been seen

        def one(r: Array, n: Array, end: Array) -> Array:
            at = end - length + jnp.arange(length)
            window = jax.tree.map(lambda x: x[r, n, jnp.maximum(at, 0)], rounds)
            valid = window.valid & (at >= 0)
            estimate = model(window.observation, window.action, window.next_observation, valid)
            return jnp.sum((estimate - truth[n]) ** 2)

        return jnp.mean(jax.vmap(one)(r, n, end))

    @property
    def _optimiser(self):
        return fit.cosine_adam(LEARNING_RATE, self.stages * self.problem.config.baselines.estimation_updates)

    def finish(self, state: Regression) -> dict[str, Any]:
        """The agents [S, ...]."""
        history = self.problem.config.baselines.history
        return {agent_artefact(self.name): OnlineAgent(self.oracle.actor, state.fit.model, history)}


def train_rma(problem: Problem, inputs: Inputs, key: Array) -> EstimatorTraining:
    """An estimator for each of the Oracle's seeds."""
    return EstimatorTraining(problem, inputs[agent_artefact(ORACLE.name)], key)


def untrained_rma(problem: Problem) -> OnlineAgent:
    """Agents [S, ...] of RMA's shapes."""
    oracle, family, given = ORACLE.skeleton(problem), problem.engine.family, problem.config
    sizes = family.observation.size, family.action.size, oracle.centre.shape[-1]
    scales = Scaler(jnp.zeros(sizes[0]), jnp.ones(sizes[0]))
    estimator = make_estimator(scales, scales, *sizes[1:], given.ppo.hidden, *jax.random.split(jax.random.key(0)))
    return OnlineAgent(oracle.actor, untrained.zeros(estimator, given.policy_seeds), given.baselines.history)


RMA = Method(
    "rma",
    "Oracle with the context estimated from recent history (ours)",
    train_rma,
    (agent_artefact(ORACLE.name),),
    untrained_rma,
    policies=one_policy,
    look=Look("RMA*", "#117733", 11),
)
