"""PPO on many environments at once, for the methods that train policies of their own.

It is the PPO of the reinforcement learning phase, seen through `engines.wrappers.MultiTask`: one policy for all
training environments, or one for each cluster of them, that may be told something of the environment it is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from pdvf.config import PPOOptions
from pdvf.core.arrays import Array
from pdvf.engines.base import Engine
from pdvf.engines.wrappers import MultiTask
from pdvf.methods.base import agent_artefact
from pdvf.paper.pipeline import Problem
from pdvf.rl.ensemble import Policies, PolicyEnsemble
from pdvf.rl.networks import make_actor_critic
from pdvf.rl.ppo import MakeNetworks

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


def task_ppo(
    problem: Problem,
    name: str,
    key: Array,
    options: PPOOptions,
    assemble: Callable[[Any], Any],
    weights: Array | None = None,
    features: Array | None = None,
    make_networks: MakeNetworks = make_actor_critic,
    wrap: Callable[[MultiTask], Engine] = lambda tasks: tasks,
    before: int = 0,
) -> PolicyEnsemble:
    """P policies of a method, each trained on environments drawn with probabilities of its own.

    Args:
        problem: whose training environments these are.
        name: of the method.
        key: of the training.
        options: PPO's (`method_ppo`).
        assemble: from actors [P, ...] to agents [S, ...].
        weights: probabilities [P, E] of the environments; None for a policy a seed, in all of them alike.
        features: what joins the observation [P, E, B, f]; None for nothing.
        make_networks: makes actor and critic.
        wrap: what stands between the environments and PPO.
        before: environment steps that were made to get here.
    """
    contexts = jnp.asarray(problem.contexts)
    if weights is None:
        weights = jnp.full((problem.config.policy_seeds, len(contexts)), 1.0 / len(contexts))
    if features is None:
        features = jnp.zeros((*weights.shape, 1, 0))

    def environment(given: tuple[Array, Array]) -> tuple[Engine, Array]:
        own_weights, own_features = given
        return wrap(MultiTask(problem.engine, contexts, own_features)), own_weights

    def finish(policies: Policies) -> dict[str, Any]:
        return {agent_artefact(name): assemble(policies.state.actor)}

    keys, shuffle = jax.random.split(jax.random.fold_in(key, 0), len(weights)), jax.random.fold_in(key, 1)
    given = weights, features
    return PolicyEnsemble(name, options, given, environment, keys, shuffle, finish, make_networks, before=before)
