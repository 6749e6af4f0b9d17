"""RL2 (Duan et al. 2016, Wang et al. 2016): a recurrent policy that finds out by itself which dynamics it is in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.config import PPOOptions
from pdvf.core.arrays import Array
from pdvf.core.devices import shard_over_devices
from pdvf.engines.wrappers import MultiTask
from pdvf.methods.base import Feedback, Hidden, Inputs, Method, Transitions, agent_artefact
from pdvf.methods.multitask_ppo import method_ppo
from pdvf.paper.pipeline import Problem
from pdvf.rl import recurrent
from pdvf.rl.recurrent import RecurrentActor, RecurrentState, see


class RecurrentAgent(eqx.Module):
    """Acts by its hidden state, which it keeps through the episode; it needs no other way to adapt."""

    actor: RecurrentActor

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """An empty hidden state [h]."""
        del hidden
        return jnp.zeros(self.actor.network.last.weight.shape[-1], observation.dtype)

    def act(self, memory: Array, observation: Array, feedback: Feedback) -> tuple[Array, Array]:
        """The mean of the policy, and the next hidden state."""
        return self.actor.network(memory, see(observation, feedback.action, feedback.reward, feedback.first))

    def adapt(self, memory: Array, transitions: Transitions) -> Array:
        """Has seen them already."""
        del transitions
        return memory


@dataclass(frozen=True)
class RecurrentTraining:
    """Recurrent PPO on environments drawn anew for every episode, one policy a seed."""

    problem: Problem
    key: Array
    name = "rl2"

    @property
    def stages(self) -> int:
        """As many as a policy of phase 1 has checkpoints."""
        return self.options.checkpoints

    @property
    def options(self) -> PPOOptions:
        """PPO's options with sequences for minibatches."""
        given = self.problem.config.baselines
        return method_ppo(
            self.problem,
            environments=given.recurrent_environments,
            rollout=given.recurrent_rollout,
            minibatches=given.recurrent_minibatches,
        )

    @property
    def _tasks(self) -> tuple[MultiTask, Array]:
        count = self.problem.contexts.shape[0]
        contexts = jnp.asarray(self.problem.contexts)
        return MultiTask(self.problem.engine, contexts, jnp.zeros((count, 1, 0))), jnp.full(count, 1.0 / count)

    def start(self) -> RecurrentState:
        """Untrained policies [S, ...]."""
        keys = jax.random.split(jax.random.fold_in(self.key, 0), self.problem.config.policy_seeds)
        engine, weights = self._tasks
        return jax.vmap(lambda key: recurrent.initialise(engine, self.options, weights, key))(keys)

    def advance(self, state: RecurrentState, stage: int) -> tuple[RecurrentState, dict[str, Array]]:
        """All policies learn for a while."""
        shuffle = jax.random.fold_in(jax.random.fold_in(self.key, 1), stage)
        state, metrics = self._train(shuffle, state)
        options = self.options
        steps = options.updates_per_checkpoint * options.environments * options.rollout
        return state, {
            "train_return": jnp.nanmean(metrics.episode_return[:, -5:]),
            "policy_loss": jnp.mean(metrics.policy_loss),
            "value_loss": jnp.mean(metrics.value_loss),
            "std": jnp.mean(metrics.std[:, -1]),
            "steps": jnp.array(float(self.problem.config.policy_seeds * steps)),
        }

    @cached_property
    def _train(self):
        options = self.options

        def train(shuffle: Array, split: RecurrentState):
            engine, weights = self._tasks
            updates = options.updates_per_checkpoint
            return jax.vmap(lambda s: recurrent.train(engine, options, weights, s, shuffle, updates))(split)

        return shard_over_devices(train)

    def finish(self, state: RecurrentState) -> dict[str, Any]:
        """The agents [S, ...]."""
        return {agent_artefact(self.name): RecurrentAgent(state.actor)}


def train_rl2(problem: Problem, inputs: Inputs, key: Array) -> RecurrentTraining:
    """One recurrent policy for all training environments."""
    del inputs
    return RecurrentTraining(problem, key)


RL2 = Method("rl2", "recurrent policy that is fed its last action and reward", train_rl2)
