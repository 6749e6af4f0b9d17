"""Kmeans (section 4.3): one policy for each cluster of environments with similar z_d."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array
from pdvf.methods.base import Feedback, Hidden, Inputs, Look, Method, Training, Transitions, begun
from pdvf.methods.multitask_ppo import method_ppo, task_ppo
from pdvf.methods.ppo_dyn import EMBEDDED, bodies, probed_embeddings, probing_steps
from pdvf.paper import untrained
from pdvf.paper.adapter import nearest
from pdvf.paper.pipeline import Problem
from pdvf.paper.prober import Body
from pdvf.rl.networks import Actor


class NearestPolicy(eqx.Module):
    """One of several policies: that of the nearest z_d."""

    actors: Actor  # [K, ...]
    centres: Array  # [K, d]
    body: Body

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """None is chosen yet."""
        return jnp.full((), -1)

    def act(self, memory: Array, observation: Array, feedback: Feedback) -> tuple[Array, Array]:
        """The probe policy at first, then the nearest."""
        own = jax.tree.map(lambda x: x[memory], self.actors)(observation)
        return jnp.where(memory >= 0, own, self.body.probe(observation)), memory

    def adapt(self, memory: Array, transitions: Transitions) -> Array:
        """Finds the nearest."""
        return nearest(self.body.dynamics.encode(transitions), self.centres).astype(memory.dtype)


def train_kmeans(problem: Problem, inputs: Inputs, key: Array) -> Training:
    """K policies a seed, each for the environments of one cluster of mean embeddings."""
    probe_key, train_key = jax.random.split(key)
    body = bodies(problem, inputs)
    embeddings = jnp.mean(probed_embeddings(problem, body, probe_key), axis=2)
    return _kmeans(problem, body, *cluster(embeddings, _clusters(problem)), train_key)


def untrained_kmeans(problem: Problem) -> NearestPolicy:
    """Agents [S, ...] of Kmeans' shapes."""
    seeds, count = problem.config.policy_seeds, _clusters(problem)
    centres = jnp.zeros((seeds, count, problem.config.dynamics.embedding))
    members = jnp.zeros((seeds, count, len(problem.contexts)))
    return begun(_kmeans(problem, untrained.bodies(problem, seeds), centres, members, jax.random.key(0)))


def _kmeans(problem: Problem, body: Body, centres: Array, members: Array, key: Array) -> Training:
    seeds, count, _ = members.shape
    weights = members / jnp.sum(members, axis=-1, keepdims=True)  # [S, K, E]

    def assemble(actors: Any) -> NearestPolicy:
        return NearestPolicy(jax.tree.map(lambda x: x.reshape(seeds, count, *x.shape[1:]), actors), centres, body)

    flat, options = weights.reshape(seeds * count, -1), method_ppo(problem, seeds * count)
    return task_ppo(problem, "kmeans", key, options, assemble, flat, before=probing_steps(problem))


def _clusters(problem: Problem) -> int:
    return min(problem.config.baselines.clusters, problem.contexts.shape[0])


def cluster(embeddings: Array, count: int) -> tuple[Array, Array]:
    """Centres [S, K, d] of the clusters of embeddings [S, E, d], and 1 where an environment is in one [S, K, E]."""
    from sklearn.cluster import KMeans  # slow to import, and few runs need it
    from threadpoolctl import threadpool_limits

    seeds, environments, size = embeddings.shape
    centres = np.zeros((seeds, count, size), np.float32)
    members = np.zeros((seeds, count, environments), np.float32)
    for s, own in enumerate(np.asarray(embeddings, np.float64)):
        with threadpool_limits(1):
            found = KMeans(count, n_init=10, random_state=0).fit(own)  # pyright: ignore[reportArgumentType]
        centres[s] = found.cluster_centers_
        members[s, found.labels_, np.arange(environments)] = 1.0
    return jnp.asarray(centres), jnp.asarray(members)


KMEANS = Method(
    "kmeans",
    "one PPO policy for each cluster of z_d (ablation)",
    train_kmeans,
    EMBEDDED,
    untrained_kmeans,
    policies=lambda config: config.baselines.clusters,
    look=Look("Kmeans", "#cc79a7", 3),
)
