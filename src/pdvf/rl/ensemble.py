"""State that PPO trains side by side: those of phase 1, and those of methods that train policies of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    state: ppo.TrainState
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
    """P policies, each trained by PPO in an environment of its own; a stage ends with a checkpoint that is kept.

    They learn independently, so they can be cut into parts that are made anywhere. Rounding may depend on how many are
    computed together.
    """

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

    def start(self) -> Policies:
        """Untrained policies."""

        def one(given: Any, key: Array) -> ppo.TrainState:
            engine, context = self.environment(given)
            return ppo.initialise(engine, self.options, context, key, self.make_networks)

        state = self.compile(jax.vmap(one))(self.given, self.keys)
        kept = jax.tree.map(lambda x: jnp.zeros((x.shape[0], self.stages, *x.shape[1:]), x.dtype), state.actor)
        return Policies(state, kept)

    def learn(self, policies: Policies, stage: int, rows: slice = slice(None)) -> tuple[Policies, ppo.Metrics]:
        """All policies, or the state of some, learn until the next checkpoint; metrics [P, updates]."""
        given = jax.tree.map(lambda x: x[rows], self.given)
        state, metrics = self._train(jax.random.fold_in(self.shuffle, stage), (given, policies.state))
        kept = jax.tree.map(lambda all_, new: all_.at[:, stage].set(new), policies.kept, state.actor)
        return Policies(state, kept), metrics

    def advance(self, policies: Policies, stage: int) -> tuple[Policies, dict[str, Any]]:
        """The same with metrics of all together."""
        policies, metrics = self.learn(policies, stage)
        return policies, {**self.summary(metrics), "steps": float(self.steps(stage))}

    @cached_property
    def _train(self):
        def one(shuffle: Array, given: Any, state: ppo.TrainState):
            engine, context = self.environment(given)
            return ppo.train(engine, self.options, context, state, shuffle, self.options.updates_per_checkpoint)

        return shard_over_devices(lambda shuffle, split: jax.vmap(lambda *row: one(shuffle, *row))(*split))


@dataclass(frozen=True)
class Part:
    """Some policies of an ensemble; it leaves their state and metrics [stages, P, updates] under its name."""

    name: str
    ensemble: PolicyEnsemble
    first: int
    end: int

    @property
    def stages(self) -> int:
        """Those of the whole."""
        return self.ensemble.stages

    def start(self) -> tuple[Policies, ppo.Metrics]:
        """The state of these policies and no metrics."""
        shape = self.stages, self.end - self.first, self.ensemble.options.updates_per_checkpoint
        rows = jax.tree.map(lambda x: x[self.first : self.end], self.ensemble.start())
        return rows, ppo.Metrics(*(jnp.zeros(shape) for _ in ppo.Metrics._fields))

    def advance(self, state: tuple[Policies, ppo.Metrics], stage: int) -> tuple[tuple[Policies, Any], dict[str, float]]:
        """A stage of these policies."""
        rows, kept = state
        rows, metrics = self.ensemble.learn(rows, stage, slice(self.first, self.end))
        kept = jax.tree.map(lambda all_, new: all_.at[stage].set(new), kept, metrics)
        return (rows, kept), {"steps": self.ensemble.steps(stage) * (self.end - self.first) / self.ensemble.rows}

    def finish(self, state: tuple[Policies, ppo.Metrics]) -> dict[str, Any]:
        """What `Joined` takes."""
        return {self.name: state}


@dataclass(frozen=True)
class Joined:
    """An ensemble whose parts are made: it leaves what the whole would, with the same metrics but for the steps."""

    ensemble: PolicyEnsemble
    parts: Sequence[tuple[Policies, ppo.Metrics]]

    @property
    def name(self) -> str:
        """That of the whole."""
        return self.ensemble.name

    @property
    def stages(self) -> int:
        """Those of the whole."""
        return self.ensemble.stages

    def start(self) -> Any:
        """Nothing is carried over."""
        return ()

    def advance(self, state: Any, stage: int) -> tuple[Any, Mapping[str, Any]]:
        """The metrics of a stage; its environment steps are counted where they were made."""
        metrics = jax.tree.map(
            lambda *x: jnp.concatenate([part[stage] for part in x]), *(kept for _, kept in self.parts)
        )
        return state, self.ensemble.summary(metrics)

    def finish(self, state: Any) -> Mapping[str, Any]:
        """What the whole leaves."""
        return self.ensemble.finish(jax.tree.map(lambda *x: jnp.concatenate(x), *(rows for rows, _ in self.parts)))
