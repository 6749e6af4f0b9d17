"""The phase `complete`: synthesised environments that join the training environments of every method.

One short training of PD-VF-plus leaves a model of what differs between environments where a policy goes. The codes of
synthesised environments are those of many drawn ones that are farthest from all others: gaps are filled first. What
comes after sees a problem with more contexts (`completed`), and need not know.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.adapt.model import DynamicsModel
from pdvf.adapt.tasks import sample_code
from pdvf.config import ConfigError
from pdvf.core.arrays import Array
from pdvf.engines.completion import Completed, complete_family
from pdvf.methods.adaptive import TRUSTED, AdaptiveTraining, TrainingState
from pdvf.methods.multitask_ppo import method_ppo
from pdvf.paper.pipeline import Problem, Recipe
from pdvf.paper.problem import Stream

NAME, COMPLETION = "complete", "completion"
DRAWN = 256
"""Codes among which each of the synthesised environments is chosen."""


class Completion(eqx.Module):
    """The model, and contexts of synthesised environments [N, c + K]: the nearest's, and the offset of the code."""

    model: DynamicsModel
    made: Array


@dataclass(frozen=True)
class Completing:
    """Learns the model along with a policy of its own, for as long as one of phase 1."""

    problem: Problem
    name = NAME

    @cached_property
    def training(self) -> AdaptiveTraining:
        """Of one seed."""
        alone = replace(self.problem, config=replace(self.problem.config, policy_seeds=1, budget="paper"))
        return AdaptiveTraining(alone, self.problem.key(Stream.COMPLETION), method_ppo(alone, 1))

    @property
    def stages(self) -> int:
        """Those of the training."""
        return self.training.stages

    def start(self) -> TrainingState:
        """Untrained."""
        return self.training.start()

    def advance(self, state: TrainingState, stage: int) -> tuple[TrainingState, Mapping[str, Any]]:
        """A stage of the training."""
        return self.training.advance(state, stage)

    def finish(self, state: TrainingState) -> dict[str, Completion]:
        """The completion, where the model can be trusted."""
        if float(state.share[0]) == 0.0:
            raise ConfigError(
                f"complete is {self.problem.config.complete}, expected 0 for {self.problem.engine.family.name}: half "
                f"of the predicted effects are wrong by more than {TRUSTED:.0%} in held-out steps"
            )
        return {COMPLETION: self.completion(state)}

    def completion(self, state: TrainingState) -> Completion:
        """The model with the environments that it completes the family by."""
        model = jax.tree.map(lambda x: x[0], state.model)
        key = jax.random.fold_in(self.problem.key(Stream.COMPLETION), self.stages)
        codes = new_codes(model.codes, self.problem.config.complete, key)
        nearest = jnp.argmin(jnp.sum((codes[:, None] - model.codes) ** 2, axis=-1), axis=1)
        contexts = jnp.asarray(self.problem.contexts)[nearest]
        return Completion(model, jnp.concatenate([contexts, codes - model.codes[nearest]], axis=1))


def new_codes(codes: Array, count: int, key: Array) -> Array:
    """Codes [N, K] in the region of those for training [E, K], each as far from all others as can be."""
    keys = jax.random.split(key, (DRAWN, 3))
    drawn = jax.vmap(lambda each: sample_code(codes, *each))(keys)

    def choose(distance: Array, _: None) -> tuple[Array, Array]:
        chosen = drawn[jnp.argmax(distance)]
        return jnp.minimum(distance, jnp.sum((drawn - chosen) ** 2, axis=-1)), chosen

    distance = jnp.min(jnp.sum((drawn[:, None] - codes) ** 2, axis=-1), axis=1)
    return jax.lax.scan(choose, distance, None, length=count)[1]


def completed(problem: Problem, completion: Completion) -> Problem:
    """A problem with synthesised environments among its training environments."""
    whole, inner = copy.copy(problem), problem.engine
    for derived in ("contexts", "everywhere"):
        vars(whole).pop(derived, None)
    family = complete_family(inner.family, np.asarray(completion.made))
    model = completion.model
    vars(whole)["engine"] = Completed(inner, model.effect, model.code_size, family)  # pyright: ignore[reportArgumentType]
    return whole


def untrained_completion(problem: Problem) -> Completion:
    """Of the shapes that the configuration gives."""
    whole = Completing(problem)
    return whole.completion(whole.start())


COMPLETE = Recipe(Completing, (), (COMPLETION,), untrained_completion)
