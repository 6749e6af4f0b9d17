"""What every phase is given: a configuration with its family and engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique
from functools import cached_property
from typing import Any

import jax
import numpy as np

from pdvf.config import Config, ConfigError
from pdvf.core.arrays import Array
from pdvf.engines import Engine, make_engine
from pdvf.engines.base import settable
from pdvf.engines.rollout import acting, episode_returns
from pdvf.families import make_family
from pdvf.rl.networks import Actor

PROBE_NOISE = 0.3  # of the largest action, while W is trained; test episodes are probed without noise


@unique
class Stream(IntEnum):
    """What a run needs random numbers for. A number is never used for anything else: trained artefacts hang on it."""

    POLICIES = 1
    MINIBATCHES = 2
    TRAJECTORIES = 3
    AUTOENCODERS = 4
    TRANSFER = 5
    SUPERVISED = 6
    EVALUATION = 7
    VALUE_MEMBERS = 8
    COMPARISON = 9
    LOST_BEGINNINGS = 10
    DANGERS = 11
    METHODS = 12
    COMPLETION = 13
    ADAPTATION = 14


@dataclass(frozen=True)
class Problem:
    """A configuration with the family and engine it names. Only `everywhere` knows the test environments."""

    config: Config

    @cached_property
    def engine(self) -> Engine:
        """What simulates."""
        family = make_family(self.config.family, self.config.environment)
        engine = make_engine(family, self.config.engine, self.config.seed)
        if self.config.complete and not settable(engine):
            raise ConfigError(
                f"complete is {self.config.complete}, expected 0: no environment can be synthesised where the "
                f"simulator of {family.name} cannot be put into any state"
            )
        return engine

    @cached_property
    def contexts(self) -> Any:
        """Contexts [E, c] of the training environments; NumPy, so that no trace can hold them."""
        return self.engine.family.train(self.config.seed).contexts

    @cached_property
    def everywhere(self) -> Any:
        """Contexts of training and test environments, for the upper bound PPOenv and for evaluation only."""
        return np.concatenate([self.contexts, self.engine.family.test(self.config.seed).contexts])

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the environments of `everywhere`."""
        family, seed = self.engine.family, self.config.seed
        return family.train(seed).numbers + family.test(seed).numbers

    @property
    def judged(self) -> Any:
        """Contexts that methods are evaluated in, those for training first."""
        return self.everywhere

    def policy_steps(self, policies: int, spent: int = 0) -> int:
        """Environment steps of PPO for each of the policies of a method's seeds together.

        With equal budgets they share what all policies of phase 1 cost, less what each has `spent` besides.
        """
        each = self.config.ppo.steps
        if self.config.budget == "paper":
            return each
        return max(len(self.contexts) * self.config.policy_seeds * each // policies - spent, 1)

    def transfer_steps(self, policies: int, episodes: int = 1) -> int:
        """Environment steps of so many episodes of policies in every training environment.

        An episode counts whole, also where it ends before its horizon: what comes then is simulated all the same.
        """
        return policies * len(self.contexts) * episodes * self.engine.family.horizon

    def key(self, stream: Stream) -> Array:
        """The random key of a stream."""
        return jax.random.fold_in(jax.random.key(self.config.seed), stream)

    def model_keys(self, stream: Stream) -> Array:
        """One key for each model seed [S]."""
        return jax.random.split(self.key(stream), self.config.model_seeds)


def flat_policies(policies: Actor) -> Actor:
    """All kept policies [C, ...] of [K, E, seeds, ...], the finished ones last."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), policies)


def finished_policies(policies: Actor) -> Actor:
    """The last of the kept policies [K, E, seeds, ...] of every training, [E * seeds, ...]."""
    return jax.tree.map(lambda x: x[-1].reshape(-1, *x.shape[3:]), policies)


def transfer(engine: Engine, contexts: Array, actors: Actor, key: Array) -> Array:
    """Returns [P, E] of policies [P, ...] without noise in contexts [E, c]."""

    def one(actor: Actor, key: Array) -> Array:
        return episode_returns(engine, contexts, acting(actor), key)

    return jax.vmap(one)(actors, jax.random.split(key, actors.log_std.shape[0]))
