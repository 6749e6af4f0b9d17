"""The phase `complete`: synthesised environments that join the training environments of every method.

One short training of PD-VF-plus leaves a model of what differs between environments where a policy goes. The codes of
synthesised environments are those of many drawn ones that are farthest from all others: gaps are filled first. What
comes after sees a problem with more contexts (`completed`), and need not know.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.adapt.model import DynamicsModel
from pdvf.adapt.tasks import sample_code
from pdvf.config import ConfigError
from pdvf.core.arrays import Array
from pdvf.core.staged import Derived
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


def model_training(problem: Problem) -> AdaptiveTraining:
    """The model along with a policy of its own: of one seed, for as long as a policy of phase 1."""
    alone = replace(problem, config=replace(problem.config, policy_seeds=1, budget="paper"))
    return AdaptiveTraining(alone, problem.key(Stream.COMPLETION), method_ppo(alone, 1))


def learn_completion(problem: Problem) -> Derived:
    """Learns the model and completes the family with it, where it can be trusted."""

    def leave(state: TrainingState) -> dict[str, Completion]:
        if float(state.share[0]) == 0.0:
            raise ConfigError(
                f"complete is {problem.config.complete}, expected 0 for {problem.engine.family.name}: half of the "
                f"predicted effects are wrong by more than {TRUSTED:.0%} in held-out steps"
            )
        return {COMPLETION: completion(problem, state)}

    return Derived(NAME, model_training(problem), leave)


def completion(problem: Problem, state: TrainingState) -> Completion:
    """The model with the environments that it completes the family by."""
    model = jax.tree.map(lambda x: x[0], state.model)
    key = jax.random.fold_in(problem.key(Stream.COMPLETION), problem.config.ppo.checkpoints)
    codes = new_codes(model.codes, problem.config.complete, key)
    nearest = jnp.argmin(jnp.sum((codes[:, None] - model.codes) ** 2, axis=-1), axis=1)
    contexts = jnp.asarray(problem.contexts)[nearest]
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
    return completion(problem, model_training(problem).start())


COMPLETE = Recipe(learn_completion, (), {COMPLETION: untrained_completion})
