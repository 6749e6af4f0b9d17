"""Phase 1, reinforcement learning: policies for every environment (section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array
from pdvf.core.devices import compiled, shard_over_devices
from pdvf.paper.problem import Problem, Stream
from pdvf.rl import ppo
from pdvf.rl.networks import Actor


class Ensemble(NamedTuple):
    """Policies in training [P, ...] and the checkpoints kept of them [P, K, ...]; P = environments x policy seeds."""

    state: ppo.TrainState
    kept: Actor


@dataclass(frozen=True)
class ReinforcementLearning:
    """Trains `policy_seeds` policies in every environment; a stage ends with a checkpoint that is kept.

    Policies of the test environments are trained in the same program, for the upper bound PPOenv alone: they share
    no data with the others and leave in an artefact of their own, which only evaluation reads.
    """

    problem: Problem
    chosen: tuple[int, int] | None = None
    """First and end of the policies of a part (`core.staged.Part`)."""
    name = "train"

    @property
    def stages(self) -> int:
        """One for each kept checkpoint."""
        return self.problem.config.ppo.checkpoints

    @cached_property
    def contexts(self) -> np.ndarray:
        """Context [P, c] of each policy, environment by environment."""
        return np.repeat(self.problem.everywhere, self.problem.config.policy_seeds, axis=0)[slice(*self._range)]

    @property
    def _range(self) -> tuple[int, int]:
        return self.chosen or (0, self.problem.everywhere.shape[0] * self.problem.config.policy_seeds)

    @property
    def rows(self) -> int:
        """Policies."""
        first, end = self._range
        return end - first

    @property
    def steps(self) -> int:
        """Environment steps of a stage."""
        options = self.problem.config.ppo
        return self.rows * options.updates_per_checkpoint * options.environments * options.rollout

    def part(self, first: int, end: int) -> ReinforcementLearning:
        """Some of the policies."""
        return ReinforcementLearning(self.problem, (first, end))

    def no_metrics(self) -> ppo.Metrics:
        """Zeros [P, updates]."""
        return ppo.no_metrics(self.rows, self.problem.config.ppo.updates_per_checkpoint)

    def start(self) -> Ensemble:
        """Untrained policies."""
        engine, options = self.problem.engine, self.problem.config.ppo
        count = self.problem.everywhere.shape[0] * self.problem.config.policy_seeds
        keys = jax.random.split(self.problem.key(Stream.POLICIES), count)[slice(*self._range)]
        fresh = compiled(jax.vmap(lambda context, key: ppo.initialise(engine, options, context, key)))
        state = fresh(self.contexts, keys)
        kept = jax.tree.map(lambda x: jnp.zeros((x.shape[0], self.stages, *x.shape[1:]), x.dtype), state.actor)
        return Ensemble(state, kept)

    def learn(self, ensemble: Ensemble, stage: int) -> tuple[Ensemble, ppo.Metrics]:
        """All policies learn until the next checkpoint; metrics [P, updates]."""
        shuffle = jax.random.fold_in(self.problem.key(Stream.MINIBATCHES), stage)
        state, metrics = self._train(shuffle, (self.contexts, ensemble.state))
        kept = jax.tree.map(lambda all_, new: all_.at[:, stage].set(new), ensemble.kept, state.actor)
        return Ensemble(state, kept), metrics

    def advance(self, ensemble: Ensemble, stage: int) -> tuple[Ensemble, dict[str, Array]]:
        """The same with metrics of all together."""
        ensemble, metrics = self.learn(ensemble, stage)
        return ensemble, self.summary(metrics)

    def summary(self, metrics: ppo.Metrics) -> dict[str, Array]:
        """Of all policies together."""
        shaped = metrics.episode_return.reshape(self.problem.everywhere.shape[0], -1, metrics.std.shape[-1])
        train = self.problem.contexts.shape[0]
        return {
            "return_per_environment": jnp.nanmean(shaped[:, :, -5:], axis=(1, 2)),
            "train_return": jnp.nanmean(shaped[:train, :, -5:]),
            "policy_loss": jnp.mean(metrics.policy_loss),
            "value_loss": jnp.mean(metrics.value_loss),
            "std": jnp.mean(metrics.std[:, -1]),
            "curve": jnp.nanmean(shaped, axis=1),
            "steps": jnp.array(float(self.steps)),
        }

    @cached_property
    def _train(self):
        engine, options = self.problem.engine, self.problem.config.ppo

        def train(shuffle: Array, split: tuple[Array, ppo.TrainState]):
            def one(context: Array, state: ppo.TrainState):
                return ppo.train(engine, options, context, state, shuffle, options.updates_per_checkpoint)

            return jax.vmap(one)(*split)

        return shard_over_devices(train)

    def finish(self, ensemble: Ensemble) -> dict[str, Actor]:
        """`policies` [K, E, seeds, ...] of the training environments and `upper_bound` of the test environments."""
        train = self.problem.contexts.shape[0]
        shape = (self.problem.everywhere.shape[0], self.problem.config.policy_seeds)
        kept = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), ensemble.kept)
        return {
            "policies": jax.tree.map(lambda x: jnp.moveaxis(x[:train], 2, 0), kept),
            "upper_bound": jax.tree.map(lambda x: x[train:, :, -1], kept),
        }
