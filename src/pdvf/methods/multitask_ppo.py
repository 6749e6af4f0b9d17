"""PPO on many environments at once: one policy for all of them, one for each cluster, or one that is told something.

PPOall, PPOdyn and Kmeans are the paper's (section 4.3); Oracle is ours. All of them are the PPO of the reinforcement
learning phase, seen through `engines.wrappers.MultiTask`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import PPOOptions
from pdvf.core.arrays import Array
from pdvf.core.devices import shard_over_devices
from pdvf.engines.base import Engine
from pdvf.engines.wrappers import MultiTask
from pdvf.families.base import Family
from pdvf.methods.base import (
    Feedback,
    Hidden,
    Inputs,
    KeepsMemory,
    Look,
    Method,
    Transitions,
    agent_artefact,
    begun,
    one_policy,
)
from pdvf.paper import untrained
from pdvf.paper.adapter import nearest
from pdvf.paper.pipeline import PROBE_NOISE, Problem, probe_policy, probe_steps
from pdvf.paper.prober import Body
from pdvf.rl import ppo
from pdvf.rl.networks import Actor, make_actor_critic

UPDATES = 380
"""About the fewest that a policy makes which plays more copies because it has more steps."""
MINIBATCHES = 32
"""About the most into which a method's own number of minibatches grows."""
PROBES = 32
"""Noisy probing episodes in each training environment, from which z_d is inferred while PPOdyn and Kmeans learn."""


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
    weights: Array  # [P, E] over the training environments
    features: Array  # [P, E, B, f] what joins the observation
    assemble: Callable[[Any], Any]  # from actors [P, ...] to agents [S, ...]
    make_networks: ppo.MakeNetworks = make_actor_critic
    wrap: Callable[[MultiTask], Engine] = lambda tasks: tasks
    before: int = 0
    """Environment steps that were made to get here."""
    chosen: tuple[int, int] | None = None
    """First and end of the policies of a part (`core.staged.Part`)."""

    @property
    def stages(self) -> int:
        """As many as a policy of phase 1 has checkpoints."""
        return self.options.checkpoints

    @property
    def _range(self) -> tuple[int, int]:
        return self.chosen or (0, self.weights.shape[0])

    @property
    def rows(self) -> int:
        """Policies."""
        first, end = self._range
        return end - first

    def steps(self, stage: int) -> int:
        """Environment steps of a stage; the first has those that were made before."""
        batch = self.options.environments * self.options.rollout
        return self.rows * self.options.updates_per_checkpoint * batch + (self.before if stage == 0 else 0)

    def part(self, first: int, end: int) -> TaskPPO:
        """Some of the policies."""
        return replace(self, chosen=(first, end))

    def no_metrics(self) -> ppo.Metrics:
        """Zeros [P, updates]."""
        return ppo.no_metrics(self.rows, self.options.updates_per_checkpoint)

    def start(self) -> ppo.TrainState:
        """Untrained policies [P, ...]."""
        keys = jax.random.split(jax.random.fold_in(self.key, 0), self.weights.shape[0])[slice(*self._range)]

        def one(weights: Array, features: Array, key: Array) -> ppo.TrainState:
            return ppo.initialise(self._engine(features), self.options, weights, key, self.make_networks)

        return jax.vmap(one)(*self._given, keys)

    @property
    def _given(self) -> tuple[Array, Array]:
        return self.weights[slice(*self._range)], self.features[slice(*self._range)]

    def learn(self, state: ppo.TrainState, stage: int) -> tuple[ppo.TrainState, ppo.Metrics]:
        """All policies learn for a while; metrics [P, updates]."""
        shuffle = jax.random.fold_in(jax.random.fold_in(self.key, 1), stage)
        return self._train(shuffle, (*self._given, state))

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


def uniform(problem: Problem, policies: int) -> Array:
    """Every training environment as likely as the next, [P, E]."""
    count = problem.contexts.shape[0]
    return jnp.full((policies, count), 1.0 / count)


def no_features(problem: Problem, policies: int) -> Array:
    """Nothing joins the observation."""
    return jnp.zeros((policies, problem.contexts.shape[0], 1, 0))


# PPOall


class Unconditioned(KeepsMemory):
    """A policy that sees what there is to see."""

    actor: Actor

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> tuple[()]:
        """Remembers nothing."""
        del observation, hidden
        return ()

    def act(self, memory: tuple[()], observation: Array, feedback: Feedback) -> tuple[Array, tuple[()]]:
        """The policy's mean."""
        del feedback
        return self.actor(observation), memory


def train_ppo_all(problem: Problem, inputs: Inputs, key: Array) -> TaskPPO:
    """One policy for all training environments."""
    del inputs
    seeds = problem.config.policy_seeds
    return TaskPPO(
        problem,
        "ppo-all",
        key,
        method_ppo(problem, seeds),
        uniform(problem, seeds),
        no_features(problem, seeds),
        Unconditioned,
    )


# PPOdyn and Kmeans: the dynamics are inferred by probing


class Probing(NamedTuple):
    """A feature [f] of the environment, and whether it is known by now []."""

    feature: Array
    known: Array


class DynamicsConditioned(eqx.Module):
    """A policy that is given z_d once the probing steps have shown it."""

    actor: Actor
    body: Body

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Probing:
        """Knows nothing."""
        del hidden
        size = self.body.dynamics.encoder.embedding.weight.shape[-2]
        return Probing(jnp.zeros(size, observation.dtype), jnp.zeros((), bool))

    def act(self, memory: Probing, observation: Array, feedback: Feedback) -> tuple[Array, Probing]:
        """The probe policy at first, then its own."""
        del feedback
        own = self.actor(jnp.concatenate([observation, memory.feature]))
        return jnp.where(memory.known, own, self.body.probe(observation)), memory

    def adapt(self, memory: Probing, transitions: Transitions) -> Probing:
        """Infers z_d."""
        return Probing(self.body.infer(transitions), jnp.ones_like(memory.known))


class NearestPolicy(eqx.Module):
    """One of several policies: that of the nearest z_d."""

    actors: Actor  # [K, ...]
    centres: Array  # [K, d]
    body: Body

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """None is chosen yet."""
        del observation, hidden
        return jnp.full((), -1)

    def act(self, memory: Array, observation: Array, feedback: Feedback) -> tuple[Array, Array]:
        """The probe policy at first, then the nearest."""
        del feedback
        own = jax.tree.map(lambda x: x[memory], self.actors)(observation)
        return jnp.where(memory >= 0, own, self.body.probe(observation)), memory

    def adapt(self, memory: Array, transitions: Transitions) -> Array:
        """Finds the nearest."""
        return nearest(self.body.infer(transitions), self.centres).astype(memory.dtype)


def bodies(problem: Problem, inputs: Inputs) -> Body:
    """Probe and encoder for each of S policy seeds; where there are fewer models they are used more than once.

    They are PD-VF's own, from before its value function is there, so that nobody has to wait for that. The decoder
    is not used.
    """
    probe = probe_policy(problem, inputs["policies"])
    models = jnp.arange(problem.config.policy_seeds) % problem.config.model_seeds
    dynamics, decoder = jax.tree.map(lambda x: x[models], (inputs["dynamics"], inputs["policy"].decoder))
    return Body(jax.tree.map(lambda x: jnp.broadcast_to(x, (models.shape[0], *x.shape)), probe), dynamics, decoder)


def probing_steps(problem: Problem) -> int:
    """Environment steps of `bodies` and `probed_embeddings`."""
    family, probings = problem.engine.family, problem.config.policy_seeds * len(problem.contexts) * PROBES
    return probe_steps(problem) + probings * family.probe_steps


def probed_embeddings(problem: Problem, bodies: Body, key: Array) -> Array:
    """z_d [S, E, B, d] of noisy probing episodes in the training environments, for bodies [S, ...]."""
    contexts = jnp.repeat(jnp.asarray(problem.contexts), PROBES, axis=0)
    keys = jax.random.split(key, bodies.probe.log_std.shape[0])
    probe = jax.jit(jax.vmap(lambda body, key: body.begin(problem.engine, contexts, key, PROBE_NOISE).z_d))
    z_d = probe(bodies, keys)
    return z_d.reshape(z_d.shape[0], -1, PROBES, z_d.shape[-1])


def train_ppo_dyn(problem: Problem, inputs: Inputs, key: Array) -> TaskPPO:
    """One policy for all training environments, conditioned on the z_d of a probing episode there."""
    probe_key, train_key = jax.random.split(key)
    body = bodies(problem, inputs)
    return _ppo_dyn(problem, body, probed_embeddings(problem, body, probe_key), train_key)


def untrained_ppo_dyn(problem: Problem) -> DynamicsConditioned:
    """Agents [S, ...] of PPOdyn's shapes."""
    seeds, environments = problem.config.policy_seeds, len(problem.contexts)
    features = jnp.zeros((seeds, environments, 1, problem.config.dynamics.embedding))
    return begun(_ppo_dyn(problem, untrained.bodies(problem, seeds), features, jax.random.key(0)))


def _ppo_dyn(problem: Problem, body: Body, features: Array, key: Array) -> TaskPPO:
    seeds = problem.config.policy_seeds
    weights, options = uniform(problem, seeds), method_ppo(problem, seeds)
    before = probing_steps(problem)

    def assemble(actors: Actor) -> DynamicsConditioned:
        return DynamicsConditioned(actors, body)

    return TaskPPO(problem, "ppo-dyn", key, options, weights, features, assemble, before=before)


def train_kmeans(problem: Problem, inputs: Inputs, key: Array) -> TaskPPO:
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


def _kmeans(problem: Problem, body: Body, centres: Array, members: Array, key: Array) -> TaskPPO:
    seeds, count, _ = members.shape
    weights = members / jnp.sum(members, axis=-1, keepdims=True)  # [S, K, E]

    def assemble(actors: Any) -> NearestPolicy:
        return NearestPolicy(jax.tree.map(lambda x: x.reshape(seeds, count, *x.shape[1:]), actors), centres, body)

    flat = weights.reshape(seeds * count, -1)
    features = no_features(problem, seeds * count)
    options = method_ppo(problem, seeds * count)
    before = probing_steps(problem)
    return TaskPPO(problem, "kmeans", key, options, flat, features, assemble, before=before)


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


# Oracle


class ContextConditioned(KeepsMemory):
    """A policy that is given the true context: what conditioning could reach if inference were perfect."""

    actor: Actor
    names: tuple[str, ...] = eqx.field(static=True)
    centre: Array
    width: Array

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """Features [f] of the context it is told."""
        del observation
        assert hidden is not None
        return (context_features(self.names, hidden.context) - self.centre) / self.width

    def act(self, memory: Array, observation: Array, feedback: Feedback) -> tuple[Array, Array]:
        """The policy's mean."""
        del feedback
        return self.actor(jnp.concatenate([observation, memory])), memory


def context_features(names: tuple[str, ...], contexts: Array) -> Array:
    """What a policy is told of contexts [..., c]: cosine and sine of angles, other numbers as they are."""
    parts: list[Array] = []
    for i, name in enumerate(names):
        value = contexts[..., i : i + 1]
        parts += [jnp.cos(value), jnp.sin(value)] if "angle" in name else [value]
    return jnp.concatenate(parts, axis=-1)


def scaled_features(family: Family, contexts: Array) -> tuple[Array, Array, Array]:
    """Features [E, f] of training contexts [E, c] with mean 0 and largest size 1, that mean and that size [f].

    Only angles keep their units: they are of order one already, and a circle should stay one.
    """
    raw = context_features(family.context_names, jnp.asarray(contexts))
    angle = jnp.asarray(
        [flag for name in family.context_names for flag in ([True, True] if "angle" in name else [False])]
    )
    centre = jnp.where(angle, 0.0, jnp.mean(raw, axis=0))
    width = jnp.where(angle, 1.0, jnp.maximum(jnp.max(jnp.abs(raw - centre), axis=0), 1e-6))
    return (raw - centre) / width, centre, width


def train_oracle(problem: Problem, inputs: Inputs, key: Array) -> TaskPPO:
    """One policy for all training environments, told which it is in."""
    del inputs
    seeds, family = problem.config.policy_seeds, problem.engine.family
    features, centre, width = scaled_features(family, problem.contexts)

    def assemble(actor: Any) -> ContextConditioned:
        rows = [jnp.tile(x, (seeds, 1)) for x in (centre, width)]
        return ContextConditioned(actor, family.context_names, *rows)

    given = jnp.tile(features[None, :, None], (seeds, 1, 1, 1))
    return TaskPPO(problem, "oracle", key, method_ppo(problem, seeds), uniform(problem, seeds), given, assemble)


_EMBEDDED = ("policies", "dynamics", "policy")
KMEANS = Method(
    "kmeans",
    "one PPO policy for each cluster of z_d (ablation)",
    train_kmeans,
    _EMBEDDED,
    untrained_kmeans,
    policies=lambda config: config.baselines.clusters,
    look=Look("Kmeans", "#cc79a7", 3),
)
PPO_DYN = Method(
    "ppo-dyn",
    "one PPO policy conditioned on z_d",
    train_ppo_dyn,
    _EMBEDDED,
    untrained_ppo_dyn,
    policies=one_policy,
    look=Look("PPOdyn", "#882255", 6),
)
PPO_ALL = Method(
    "ppo-all",
    "one PPO policy for all training environments",
    train_ppo_all,
    policies=one_policy,
    ensemble=True,
    look=Look("PPOall", "#b8a800", 7),
)
ORACLE = Method(
    "oracle",
    "one PPO policy that is told the true context (ours)",
    train_oracle,
    privileged=True,
    policies=one_policy,
    ensemble=True,
    look=Look("Oracle*", "#333333", 10),
)
