"""PPO on many environments at once, for the methods that train policies of their own.

It is the PPO of the reinforcement learning phase, seen through `engines.wrappers.MultiTask`: one policy for all
training environments, or one for each cluster of them, that may be told something of the environment it is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from pdvf.config import PPOOptions
from pdvf.core.arrays import Array
from pdvf.core.devices import shard_over_devices
from pdvf.engines.base import Engine
from pdvf.engines.wrappers import MultiTask
from pdvf.methods.base import agent_artefact
from pdvf.paper.pipeline import Problem
from pdvf.rl import ppo
from pdvf.rl.networks import make_actor_critic

UPDATES = 380
"""About the fewest that a policy makes which plays more copies because it has more steps."""
MINIBATCHES = 32
"""About the most into which a method's own number of minibatches grows."""


def method_ppo(problem: Problem, policies: int, spent: int = 0, **sizes: int) -> PPOOptions:
    """PPO's options for each of a method's policies, with sizes of its own: at least an update a stage.

    Where the budget gives a policy more steps than one of phase 1 has, it plays more copies at once, in place of
    making more updates: a power of two as many. Its minibatches grow; only where a method has few of its own there
    are more of them, too.

    Args:
        problem: says what there is to spend.
        policies: of all seeds together.
        spent: steps for each policy that equal budgets have to pay for besides.
        sizes: those in which the method differs from PPOall.
    """
    ppo, given = problem.config.ppo, problem.config.baselines
    names = ("environments", "rollout", "epochs", "minibatches", "hidden")
    own, sizes = sizes, {name: getattr(given, name) or getattr(ppo, name) for name in names} | sizes
    steps, batch = problem.policy_steps(policies, spent), sizes["environments"] * sizes["rollout"]
    more = _power_of_two(min(steps / ppo.steps, steps / (batch * UPDATES)))
    sizes["environments"] *= more
    if "minibatches" in own:
        sizes["minibatches"] *= min(more, _power_of_two(MINIBATCHES / sizes["minibatches"]))
    return replace(ppo, steps=max(steps, more * batch * ppo.checkpoints), **sizes)


def _power_of_two(x: float) -> int:
    """The nearest to x, 1 at least."""
    return 2 ** max(round(math.log2(x)), 0)


@dataclass(frozen=True)
class TaskPPO:
    """P policies, each trained by PPO on environments drawn with probabilities of its own."""

    problem: Problem
    name: str
    key: Array
    options: PPOOptions
    assemble: Callable[[Any], Any]  # from actors [P, ...] to agents [S, ...]
    weights: Array | None = None
    """Probabilities [P, E] of the training environments; None for a policy a seed, in all of them alike."""
    features: Array | None = None
    """What joins the observation [P, E, B, f]; None for nothing."""
    make_networks: ppo.MakeNetworks = make_actor_critic
    wrap: Callable[[MultiTask], Engine] = lambda tasks: tasks
    before: int = 0
    """Environment steps that were made to get here."""

    @property
    def stages(self) -> int:
        """As many as a policy of phase 1 has checkpoints."""
        return self.options.checkpoints

    @property
    def rows(self) -> int:
        """Policies."""
        return self._environments[0].shape[0]

    def steps(self, stage: int) -> int:
        """Environment steps of a stage; the first has those that were made before."""
        batch = self.options.environments * self.options.rollout
        return self.rows * self.options.updates_per_checkpoint * batch + (self.before if stage == 0 else 0)

    def no_metrics(self) -> ppo.Metrics:
        """Zeros [P, updates]."""
        return ppo.no_metrics(self.rows, self.options.updates_per_checkpoint)

    def start(self) -> ppo.TrainState:
        """Untrained policies [P, ...]."""
        keys = jax.random.split(jax.random.fold_in(self.key, 0), self.rows)

        def one(weights: Array, features: Array, key: Array) -> ppo.TrainState:
            return ppo.initialise(self._engine(features), self.options, weights, key, self.make_networks)

        return jax.vmap(one)(*self._environments, keys)

    @property
    def _environments(self) -> tuple[Array, Array]:
        """Probabilities [P, E] and features [P, E, B, f] for all policies."""
        weights, features = self.weights, self.features
        if weights is None:
            count = len(self.problem.contexts)
            weights = jnp.full((self.problem.config.policy_seeds, count), 1.0 / count)
        return weights, jnp.zeros((*weights.shape, 1, 0)) if features is None else features

    def learn(self, state: ppo.TrainState, stage: int, rows: slice = slice(None)) -> tuple[ppo.TrainState, ppo.Metrics]:
        """Policies learn for a while; metrics [P, updates]."""
        shuffle = jax.random.fold_in(jax.random.fold_in(self.key, 1), stage)
        weights, features = self._environments
        return self._train(shuffle, (weights[rows], features[rows], state))

    def advance(self, state: ppo.TrainState, stage: int) -> tuple[ppo.TrainState, dict[str, Any]]:
        """The same with metrics of all together."""
        state, metrics = self.learn(state, stage)
        return state, self.summary(metrics) | {"steps": float(self.steps(stage))}

    def summary(self, metrics: ppo.Metrics) -> dict[str, Array]:
        """Of all policies together."""
        return {
            "train_return": jnp.nanmean(metrics.episode_return[:, -5:]),
            "policy_loss": jnp.mean(metrics.policy_loss),
            "value_loss": jnp.mean(metrics.value_loss),
            "std": jnp.mean(metrics.std[:, -1]),
        }

    @cached_property
    def _train(self):
        def train(shuffle: Array, split: tuple[Array, Array, ppo.TrainState]):
            def one(weights: Array, features: Array, state: ppo.TrainState):
                updates = self.options.updates_per_checkpoint
                return ppo.train(self._engine(features), self.options, weights, state, shuffle, updates)

            return jax.vmap(one)(*split)

        return shard_over_devices(train)

    def _engine(self, features: Array) -> Engine:
        return self.wrap(MultiTask(self.problem.engine, jnp.asarray(self.problem.contexts), features))

    def finish(self, state: ppo.TrainState) -> dict[str, Any]:
        """The agents [S, ...]."""
        return {agent_artefact(self.name): self.assemble(state.actor)}
