"""PD-VF-plus (ours): one policy that acts under a belief about the dynamics, trained in a completed family.

In stages, for every seed: the policy so far plays in the training environments, and every step is made again in another
of them; a model of the dynamics learns codes, effect and noise from these pairs; PPO then trains the policy in real and
synthesised environments, with the belief's mean and standard deviations beside every observation. Its critic, which
training alone needs, is told the code instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pdvf.adapt import learning
from pdvf.adapt.belief import Belief, out_of_distribution, update
from pdvf.adapt.model import DynamicsModel, make_model
from pdvf.adapt.tasks import BeliefTasks
from pdvf.config import PPOOptions
from pdvf.core.arrays import Array
from pdvf.core.devices import shard_over_devices
from pdvf.engines.base import settable, state_vector
from pdvf.methods.base import Feedback, Hidden, Inputs, KeepsMemory, Look, Method, agent_artefact, one_policy
from pdvf.methods.multitask_ppo import method_ppo
from pdvf.paper.pipeline import Problem
from pdvf.rl import ppo
from pdvf.rl.networks import Actor, make_partial_views

NAME = "pd-vf-plus"
TRUSTED = 0.5
"""Median relative error of the effect at which no environment is synthesised any more."""


class BeliefMemory(NamedTuple):
    """The belief, and the observation that the next transition begins with [o]."""

    belief: Belief
    observation: Array


class BeliefAgent(KeepsMemory):
    """A policy that sees the belief beside the observation."""

    actor: Actor
    model: DynamicsModel

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> BeliefMemory:
        """The prior."""
        return BeliefMemory(Belief.prior(self.model.code_size), observation)

    def act(self, memory: BeliefMemory, observation: Array, feedback: Feedback) -> tuple[Array, BeliefMemory]:
        """Takes in the last transition, then acts."""
        learned = self.learn(memory, observation, feedback)
        return self.decide(learned, observation), learned

    def learn(self, memory: BeliefMemory, observation: Array, feedback: Feedback) -> BeliefMemory:
        """The belief with the last transition, if there was one."""
        learned = update(self.model, memory.belief, memory.observation, feedback.action, observation)
        first = feedback.first > 0.5
        belief = jax.tree.map(lambda old, new: jnp.where(first, old, new), memory.belief, learned)
        return BeliefMemory(belief, observation)

    def decide(self, memory: BeliefMemory, observation: Array) -> Array:
        """The policy's mean under the belief."""
        return self.actor(jnp.concatenate([observation, memory.belief.features()]))

    def code(self, memory: BeliefMemory) -> Array:
        """The belief's mean [K]."""
        return memory.belief.mean

    def out_of_distribution(self, memory: BeliefMemory) -> Array:
        """How unlike training the episode is so far []: above 1 where hardly any of training is."""
        return out_of_distribution(self.model, memory.belief)


class TrainingState(NamedTuple):
    """Models and policies in training, [S, ...]."""

    model: DynamicsModel
    share: Array  # [S] of synthesised episodes
    policy: ppo.TrainState


@dataclass(frozen=True)
class AdaptiveTraining:
    """S models with their policies."""

    problem: Problem
    key: Array
    options: PPOOptions
    name = NAME

    @property
    def stages(self) -> int:
        """As many as a policy has checkpoints."""
        return self.options.checkpoints

    @cached_property
    def _paired(self) -> bool:
        return settable(self.problem.engine)

    @property
    def _streams(self) -> int:
        return learning.streams_for(self.problem.config.plus.rows, self.problem.engine.family.horizon)

    @property
    def gathered(self) -> int:
        """Steps of a seed from which a stage learns its model; a pair is two."""
        return self._streams * self.problem.engine.family.horizon * (2 if self._paired else 1)

    def _tasks(self, model: DynamicsModel, share: Array) -> BeliefTasks:
        return BeliefTasks(self.problem.engine, jnp.asarray(self.problem.contexts), model, share)

    def start(self) -> TrainingState:
        """Untrained models and policies."""
        keys = jax.random.split(jax.random.fold_in(self.key, 0), self.problem.config.policy_seeds)
        return jax.vmap(self._start)(keys)

    def _start(self, key: Array) -> TrainingState:
        model_key, policy_key = jax.random.split(key)
        engine, given = self.problem.engine, self.problem.config.plus
        contexts = jnp.asarray(self.problem.contexts)
        size = 1
        if self._paired:
            states, _ = jax.eval_shape(engine.reset, jax.random.split(key, 1), contexts[:1])
            size = jax.eval_shape(partial(state_vector, engine), states).shape[-1]
        family = engine.family
        model = make_model(
            family.observation.size, family.action.size, size, contexts.shape[0], given.code, given.width, model_key
        )
        tasks = self._tasks(model, jnp.zeros(()))
        views = partial(make_partial_views, actor_sees=tasks.actor_sees, critic_sees=tasks.critic_sees)
        policy = ppo.initialise(tasks, self.options, jnp.zeros(1), policy_key, views)
        return TrainingState(model, jnp.zeros(()), policy)

    def advance(self, state: TrainingState, stage: int) -> tuple[TrainingState, dict[str, Any]]:
        """Gathers steps, fits the models, then trains the policies."""
        key = jax.random.fold_in(jax.random.fold_in(self.key, 1), stage)
        fit_key, shuffle = jax.random.split(key)
        keys = jax.random.split(fit_key, state.share.shape[0])
        model, rows, seen, loss = self._fit((), (state.model, state.policy.actor, keys))
        model, quality = learning.renormalise(model, seen)
        model, error = self._calibrate((), (model, rows))
        trust = jnp.clip(1 - quality.relative_error / TRUSTED, 0.0, 1.0)
        share = self.problem.config.plus.synthesised * trust * self._paired
        policy, metrics = self._train(shuffle, (model, share, state.policy))
        batch = self.options.environments * self.options.rollout
        steps = self.options.updates_per_checkpoint * batch + self.gathered
        return TrainingState(model, share, policy), {
            "train_return": jnp.nanmean(metrics.episode_return[:, -5:]),
            "model_loss": jnp.mean(loss),
            "effect_error": jnp.mean(quality.relative_error),
            "code_numbers": jnp.mean(quality.rank),
            "code_error": jnp.mean(error),
            "temperature": jnp.mean(model.temperature),
            "synthesised": jnp.mean(share),
            "std": jnp.mean(metrics.std[:, -1]),
            "steps": float(share.shape[0] * steps),
        }

    @cached_property
    def _fit(self):
        given = self.problem.config.plus

        def one(model: DynamicsModel, actor: Actor, key: Array):
            gather_key, fit_key = jax.random.split(key)
            rows = learning.gather(self._tasks(model, jnp.zeros(())), actor, self._streams, gather_key)
            model, loss = learning.fit(
                model, rows, self._paired, given.updates, given.batch, given.learning_rate, fit_key
            )
            return model, rows, learning.held_out_effects(model, rows, self._paired), loss

        return shard_over_devices(lambda _, split: jax.vmap(one)(*split))

    @cached_property
    def _calibrate(self):
        return shard_over_devices(lambda _, split: jax.vmap(learning.calibrate)(*split))

    @cached_property
    def _train(self):
        def one(shuffle: Array, model: DynamicsModel, share: Array, state: ppo.TrainState):
            updates = self.options.updates_per_checkpoint
            return ppo.train(self._tasks(model, share), self.options, jnp.zeros(1), state, shuffle, updates)

        return shard_over_devices(lambda shuffle, split: jax.vmap(lambda *each: one(shuffle, *each))(*split))

    def finish(self, state: TrainingState) -> dict[str, Any]:
        """The agents [S, ...]."""
        return {agent_artefact(NAME): BeliefAgent(state.policy.actor.alone(), state.model)}


def train_plus(problem: Problem, inputs: Inputs, key: Array) -> AdaptiveTraining:
    """A model and a policy for every seed."""
    training = AdaptiveTraining(problem, key, problem.config.ppo)
    spent = training.stages * training.gathered
    return replace(training, options=method_ppo(problem, problem.config.policy_seeds, spent))


PD_VF_PLUS = Method(
    NAME,
    "one policy under a belief, trained in a completed family (ours)",
    train_plus,
    adapting=True,
    policies=one_policy,
    look=Look("PD-VF-plus*", "#003f73", 13),
)
