"""State that PPO trains side by side: those of phase 1, and those of methods that train policies of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pdvf.config import PPOOptions
from pdvf.core.arrays import Array
from pdvf.core.devices import shard_over_devices
from pdvf.engines.base import Engine
from pdvf.rl import ppo
from pdvf.rl.networks import make_actor_critic


class Policies(NamedTuple):
    """Policies in training [P, ...] and the checkpoints kept of them [P, K, ...]."""

    training: ppo.TrainState
    kept: Any


def summary(metrics: ppo.Metrics) -> dict[str, Array]:
    """The metrics [P, updates] of all policies together."""
    return {
        "train_return": jnp.nanmean(metrics.episode_return[:, -5:]),
        "policy_loss": jnp.mean(metrics.policy_loss),
        "value_loss": jnp.mean(metrics.value_loss),
        "std": jnp.mean(metrics.std[:, -1]),
    }


@dataclass(frozen=True)
class PolicyEnsemble:
    """P policies, each trained by PPO in an environment of its own; a stage ends with a checkpoint that is kept."""

    name: str
    options: PPOOptions
    given: Any
    """What they differ in, a pytree [P, ...]."""
    environment: Callable[[Any], tuple[Engine, Array]]
    """From a policy's row of `given` to what simulates, and the context there."""
    keys: Array
    """[P] one for each policy."""
    shuffle: Array
    """The key that orders minibatches."""
    finish: Callable[[Policies], Mapping[str, Any]]
    """From the last state to artefacts by name."""
    make_networks: ppo.MakeNetworks = make_actor_critic
    compile: Callable[[Any], Any] = lambda start: start
    """What compiles the start; nothing where untrained policies are made in a trace, to know their shapes."""
    summary: Callable[[ppo.Metrics], Mapping[str, Array]] = summary
    """From metrics [P, updates] to those of a stage."""
    before: int = 0
    """Environment steps that were made to get here."""

    @property
    def stages(self) -> int:
        """One for each kept checkpoint."""
        return self.options.checkpoints

    @property
    def rows(self) -> int:
        """Policies."""
        return self.keys.shape[0]

    def steps(self, stage: int) -> int:
        """Environment steps of a stage; the first has those that were made before."""
        batch = self.options.environments * self.options.rollout
        return self.rows * self.options.updates_per_checkpoint * batch + (self.before if stage == 0 else 0)

    def no_metrics(self) -> ppo.Metrics:
        """Zeros [P, updates]."""
        shape = self.rows, self.options.updates_per_checkpoint
        return ppo.Metrics(*(jnp.zeros(shape) for _ in ppo.Metrics._fields))

    def start(self) -> Policies:
        """Untrained policies."""

        def one(given: Any, key: Array) -> ppo.TrainState:
            engine, context = self.environment(given)
            return ppo.initialise(engine, self.options, context, key, self.make_networks)

        training = self.compile(jax.vmap(one))(self.given, self.keys)
        kept = jax.tree.map(lambda x: jnp.zeros((x.shape[0], self.stages, *x.shape[1:]), x.dtype), training.actor)
        return Policies(training, kept)

    def learn(self, state: Policies, stage: int, rows: slice = slice(None)) -> tuple[Policies, ppo.Metrics]:
        """Policies learn until the next checkpoint; metrics [P, updates]."""
        given = jax.tree.map(lambda x: x[rows], self.given)
        training, metrics = self._train(jax.random.fold_in(self.shuffle, stage), (given, state.training))
        kept = jax.tree.map(lambda all_, new: all_.at[:, stage].set(new), state.kept, training.actor)
        return Policies(training, kept), metrics

    def advance(self, state: Policies, stage: int) -> tuple[Policies, dict[str, Any]]:
        """The same with metrics of all together."""
        state, metrics = self.learn(state, stage)
        return state, {**self.summary(metrics), "steps": float(self.steps(stage))}

    @cached_property
    def _train(self):
        def one(shuffle: Array, given: Any, state: ppo.TrainState):
            engine, context = self.environment(given)
            return ppo.train(engine, self.options, context, state, shuffle, self.options.updates_per_checkpoint)

        return shard_over_devices(lambda shuffle, split: jax.vmap(lambda *row: one(shuffle, *row))(*split))
