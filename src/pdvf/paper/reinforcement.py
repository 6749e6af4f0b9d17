"""Phase 1, reinforcement learning: policies for every environment (section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.core.devices import compiled
from pdvf.engines import Engine
from pdvf.paper.problem import Problem, Stream
from pdvf.rl import ppo
from pdvf.rl.ensemble import Policies, PolicyEnsemble, summary
from pdvf.rl.networks import Actor


def reinforcement_learning(problem: Problem) -> PolicyEnsemble:
    """`policy_seeds` policies in every training environment: `policies` [K, E, seeds, ...], all that were kept."""

    def artefacts(kept: Actor) -> dict[str, Actor]:
        return {"policies": jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), kept)}

    return _ensemble(problem, "train", problem.contexts, 0, artefacts)


def upper_bound(problem: Problem) -> PolicyEnsemble:
    """The same in the test environments: `upper_bound` [E, seeds, ...], the finished ones.

    Only PPOenv and figures use them: no other phase or method needs them.
    """
    train = len(problem.contexts)

    def artefacts(kept: Actor) -> dict[str, Actor]:
        return {"upper_bound": jax.tree.map(lambda x: x[:, :, -1], kept)}

    return _ensemble(problem, "bound", problem.everywhere[train:], train, artefacts)


def _ensemble(
    problem: Problem, name: str, contexts: Any, before: int, artefacts: Callable[[Actor], dict[str, Actor]]
) -> PolicyEnsemble:
    """For contexts [E, c] with `before` others before them; artefacts are made of what was kept [E, seeds, K, ...]."""
    options, seeds = problem.config.ppo, problem.config.policy_seeds
    keys = jax.random.split(problem.key(Stream.POLICIES), (before + len(contexts)) * seeds)[before * seeds :]

    def finish(policies: Policies) -> dict[str, Actor]:
        return artefacts(jax.tree.map(lambda x: x.reshape(-1, seeds, *x.shape[1:]), policies.kept))

    def metrics(found: ppo.Metrics) -> dict[str, Array]:
        returns = found.episode_return.reshape(-1, seeds, found.std.shape[-1])
        return summary(found) | {"curve": jnp.nanmean(returns, axis=1)}

    def environment(context: Array) -> tuple[Engine, Array]:
        return problem.engine, context

    given, shuffle = contexts.repeat(seeds, axis=0), problem.key(Stream.MINIBATCHES)
    return PolicyEnsemble(name, options, given, environment, keys, shuffle, finish, compile=compiled, summary=metrics)
