"""Phase 4, evaluation: adapted episodes in each environment (section 3.5), as data for figures."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.core.devices import compiled
from pdvf.core.staged import OneStage
from pdvf.paper.adapter import Adaptation, Adapter, adapt_episodes
from pdvf.paper.policy import PolicyAutoencoder
from pdvf.paper.problem import Problem, Stream, transfer
from pdvf.paper.trajectories import collect
from pdvf.rl.networks import Actor

_RETURNS = ("number", "SEJ")
AXES = {
    "environments": ("whole number", "E"),
    "train_count": ("whole number", ""),
    "contexts": ("number", "Ec"),
    "returns": _RETURNS,
    "predicted": _RETURNS,
    "transfer": ("number", "EPE"),
    "z_d": ("any number", "SEJd"),
    "z_pi": ("any number", "SEJe"),
    "path_observation": ("any number", "SETo"),
    "path_next_observation": ("any number", "SETo"),
    "path_valid": ("flag", "SET"),
    "tsne_z_d": ("number", "Nd"),
    "tsne_z_pi": ("number", "Ne"),
    "tsne_policy": ("whole number", "N"),
    "tsne_environment": ("whole number", "N"),
    "value_predicted": ("number", "V"),
    "value_actual": ("number", "V"),
}
"""The arrays of an evaluation: kind and axes, for environments E, models S, policies P and episodes J."""


def evaluation(
    problem: Problem, policies: Actor, upper_bound: Actor, policy: PolicyAutoencoder, adapter: Adapter
) -> OneStage:
    """What the report draws: adapted episodes in every environment, how policies transfer, embeddings, W's predictions.

    The returns of the table are not from here: PD-VF is evaluated as every method is, by `methods.play`. Policies are
    [K, E, seeds, ...], those of the upper bound [test E, seeds, ...], autoencoders and adapters [S, ...].
    """
    play = compiled(partial(_play, problem))
    return OneStage("evaluate", lambda: ({"evaluation": play(policies, upper_bound, policy, adapter)}, {}))


def _play(problem: Problem, policies: Actor, upper_bound: Actor, policy: PolicyAutoencoder, adapter: Adapter):
    engine, everywhere = problem.engine, problem.everywhere
    train, episodes = problem.contexts.shape[0], problem.config.evaluate.episodes
    keys = jax.random.split(problem.key(Stream.EVALUATION), 6)
    finished = jax.tree.map(lambda a, b: jnp.concatenate([a[-1], b]), policies, upper_bound)  # [E, seeds, ...]
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), finished)
    contexts = jnp.repeat(everywhere, episodes, axis=0)

    def one(adapter: Adapter, probe_key: Array, play_key: Array) -> Adaptation:
        return adapt_episodes(engine, adapter, contexts, probe_key, play_key)

    seeds = adapter.scale.low.shape[0]
    adapted = jax.vmap(one)(adapter, jax.random.split(keys[1], seeds), jax.random.split(keys[2], seeds))

    def grid(x: Array) -> Array:
        """[S, E * J] to [S, E, J]."""
        return x.reshape(x.shape[0], everywhere.shape[0], episodes, *x.shape[2:])

    def paths(x: Array) -> Array:
        """[S, T, E * J, ...] to the first episode of each environment, [S, E, T, ...]."""
        return jnp.moveaxis(x[:, :, ::episodes], 1, 2)

    first = jax.tree.map(lambda x: x[0], (policy, adapter))
    return {
        "environments": jnp.array(problem.numbers),
        "train_count": jnp.array(train),
        "contexts": everywhere,
        "returns": grid(adapted.returns),
        "predicted": grid(adapted.predicted),
        "z_d": grid(adapted.z_d),
        "z_pi": grid(adapted.z_pi),
        "path_observation": paths(adapted.steps.observation),
        "path_next_observation": paths(adapted.steps.next_observation),
        "path_valid": paths(adapted.steps.valid),
        "transfer": transfer(engine, everywhere, flat, keys[3]).reshape(*finished.log_std.shape[:2], -1),
        **_embeddings(problem, finished, first[0], first[1], keys[4]),
        **_predictions(problem, first[1], keys[5]),
    }


def _embeddings(problem: Problem, finished: Actor, policy: PolicyAutoencoder, adapter: Adapter, key: Array):
    """z_d and z_pi of episodes of one policy of each environment in every environment, for the t-SNE figures."""
    collect_key, encode_key = jax.random.split(key)
    everywhere = problem.everywhere
    count, episodes = everywhere.shape[0], 2
    actors = jax.tree.map(lambda x: x[:, 0], finished)
    keys = jax.random.split(collect_key, count)
    engine, kept = problem.engine, problem.config.collect.steps
    played = jax.vmap(lambda actor, k: collect(engine, everywhere, episodes, kept, actor, k))(actors, keys)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), played)
    first = jax.tree.map(lambda x: x[:, : problem.engine.family.probe_steps], flat._replace(returns=()))
    z_d = jax.vmap(adapter.body.dynamics.encode)(first)
    set_size = problem.config.policy.set_size
    encode_keys = jax.random.split(encode_key, flat.returns.shape[0])
    z_pi = jax.vmap(lambda row, k: policy.encode(row, set_size, k))(flat, encode_keys)
    numbers = jnp.array(problem.numbers)
    return {
        "tsne_z_d": z_d,
        "tsne_z_pi": z_pi,
        "tsne_policy": jnp.repeat(numbers, count * episodes),
        "tsne_environment": jnp.tile(jnp.repeat(numbers, episodes), count),
    }


def _predictions(problem: Problem, adapter: Adapter, key: Array):
    """W against actual returns of training policies' embeddings in the training environments."""
    choose_key, score_key = jax.random.split(key)
    z_pi = jax.random.choice(choose_key, adapter.train_z_pi, (100,))
    scores = adapter.body.score(problem.engine, problem.contexts, z_pi, score_key, 0.0)
    predict = jax.vmap(jax.vmap(adapter.predict, in_axes=(0, None, 0)))
    predicted = predict(scores.s0, scores.z_pi, scores.z_d)
    return {"value_predicted": predicted.reshape(-1), "value_actual": scores.returns.reshape(-1)}
