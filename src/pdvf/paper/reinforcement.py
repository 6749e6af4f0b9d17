"""Phase 1, reinforcement learning: policies for every environment (section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

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
    """Trains `policy_seeds` policies in every training environment; a stage ends with a checkpoint that is kept."""

    problem: Problem
    test: bool = False
    """In the test environments instead: see `upper_bound`."""

    @property
    def name(self) -> str:
        """Of the phase."""
        return "bound" if self.test else "train"

    @property
    def stages(self) -> int:
        """One for each kept checkpoint."""
        return self.problem.config.ppo.checkpoints

    @cached_property
    def contexts(self) -> np.ndarray:
        """Context [P, c] of each policy, environment by environment."""
        train = self.problem.contexts
        own = self.problem.everywhere[len(train) :] if self.test else train
        return np.repeat(own, self.problem.config.policy_seeds, axis=0)

    @property
    def rows(self) -> int:
        """Policies."""
        return len(self.contexts)

    def steps(self, stage: int) -> int:
        """Environment steps of a stage."""
        options = self.problem.config.ppo
        return self.rows * options.updates_per_checkpoint * options.environments * options.rollout

    def no_metrics(self) -> ppo.Metrics:
        """Zeros [P, updates]."""
        return ppo.no_metrics(self.rows, self.problem.config.ppo.updates_per_checkpoint)

    def start(self) -> Ensemble:
        """Untrained policies."""
        engine, options = self.problem.engine, self.problem.config.ppo
        before = len(self.problem.contexts) * self.problem.config.policy_seeds if self.test else 0
        keys = jax.random.split(self.problem.key(Stream.POLICIES), before + self.rows)[before:]
        fresh = compiled(jax.vmap(lambda context, key: ppo.initialise(engine, options, context, key)))
        state = fresh(self.contexts, keys)
        kept = jax.tree.map(lambda x: jnp.zeros((x.shape[0], self.stages, *x.shape[1:]), x.dtype), state.actor)
        return Ensemble(state, kept)

    def learn(self, ensemble: Ensemble, stage: int, rows: slice = slice(None)) -> tuple[Ensemble, ppo.Metrics]:
        """Policies learn until the next checkpoint; metrics [P, updates]."""
        shuffle = jax.random.fold_in(self.problem.key(Stream.MINIBATCHES), stage)
        state, metrics = self._train(shuffle, (self.contexts[rows], ensemble.state))
        kept = jax.tree.map(lambda all_, new: all_.at[:, stage].set(new), ensemble.kept, state.actor)
        return Ensemble(state, kept), metrics

    def advance(self, ensemble: Ensemble, stage: int) -> tuple[Ensemble, dict[str, Any]]:
        """The same with metrics of all together."""
        ensemble, metrics = self.learn(ensemble, stage)
        return ensemble, self.summary(metrics) | {"steps": float(self.steps(stage))}

    def summary(self, metrics: ppo.Metrics) -> dict[str, Array]:
        """Of all policies together."""
        shaped = metrics.episode_return.reshape(-1, self.problem.config.policy_seeds, metrics.std.shape[-1])
        return {
            "return_per_environment": jnp.nanmean(shaped[:, :, -5:], axis=(1, 2)),
            "train_return": jnp.nanmean(shaped[:, :, -5:]),
            "policy_loss": jnp.mean(metrics.policy_loss),
            "value_loss": jnp.mean(metrics.value_loss),
            "std": jnp.mean(metrics.std[:, -1]),
            "curve": jnp.nanmean(shaped, axis=1),
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
        """`policies` [K, E, seeds, ...], or of `upper_bound` [E, seeds, ...] the finished ones."""
        seeds = self.problem.config.policy_seeds
        kept = jax.tree.map(lambda x: x.reshape(-1, seeds, *x.shape[1:]), ensemble.kept)
        if self.test:
            return {"upper_bound": jax.tree.map(lambda x: x[:, :, -1], kept)}
        return {"policies": jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), kept)}


def upper_bound(problem: Problem) -> ReinforcementLearning:
    """Policies of the test environments, which only PPOenv and figures use: no other phase or method needs them."""
    return ReinforcementLearning(problem, test=True)
