"""NN (section 4.3): of the policies of phase 1, that of the nearest training environment in z_d."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.core.objective import objective_of
from pdvf.methods.base import AtOnce, Inputs, Look, Method
from pdvf.methods.kmeans import NearestPolicy
from pdvf.methods.pdvf import PD_VF
from pdvf.paper import untrained
from pdvf.paper.adapter import Adapter
from pdvf.paper.pipeline import Problem, transfer
from pdvf.rl.networks import Actor


def train_nn(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """The finished policies of phase 1: of each training environment's seeds the one that is best there."""
    adapter: Adapter = inputs["adapter"]
    episodes = problem.config.evaluate.episodes

    def make() -> NearestPolicy:
        finished = jax.tree.map(lambda x: x[-1], inputs["policies"])  # [E, seeds, ...]
        contexts = jnp.asarray(problem.contexts)

        def own(actors: Actor, context: Array, key: Array) -> Array:
            played = transfer(problem.engine, jnp.tile(context, (episodes, 1)), actors, key)
            return objective_of(problem.engine.family).summary(played, -1)

        returns = jax.jit(jax.vmap(own))(finished, contexts, jax.random.split(key, contexts.shape[0]))
        best = jnp.argmax(returns, axis=-1)
        actors = jax.tree.map(lambda x: x[jnp.arange(contexts.shape[0]), best], finished)
        seeds = adapter.train_z_d.shape[0]
        return NearestPolicy(
            jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), actors), adapter.train_z_d, adapter.body
        )

    played = problem.config.policy_seeds * episodes * len(problem.contexts) * problem.engine.family.horizon
    return AtOnce("nn", make, played)


def untrained_nn(problem: Problem) -> NearestPolicy:
    """Agents [S, ...] of NN's shapes."""
    adapter = untrained.adapter(problem)
    actors = untrained.actors(problem, problem.config.model_seeds, len(problem.contexts))
    return NearestPolicy(actors, adapter.train_z_d, adapter.body)


NN = Method(
    "nn",
    "policy of the nearest training environment in z_d (ablation)",
    train_nn,
    ("policies", "adapter"),
    untrained_nn,
    variant_of=PD_VF.name,
    every_run=True,
    look=Look("NN", "#009e73", 2),
)
