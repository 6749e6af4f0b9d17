"""PPOdyn (section 4.3): one policy for all training environments, which sees z_d once probing has shown it."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.methods.base import Feedback, Hidden, Inputs, Look, Method, Training, Transitions, begun, one_policy
from pdvf.methods.multitask_ppo import method_ppo, task_ppo
from pdvf.paper import untrained
from pdvf.paper.pipeline import PROBE_NOISE, Problem, probe_policy, probe_steps
from pdvf.paper.prober import Body
from pdvf.rl.networks import Actor

EMBEDDED = ("policies", "dynamics", "policy")
"""Artefacts from which z_d is inferred (`bodies`)."""
PROBES = 32
"""Noisy probing episodes in each training environment, from which z_d is inferred while PPOdyn and Kmeans learn."""


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
        size = self.body.dynamics.encoder.embedding.weight.shape[-2]
        return Probing(jnp.zeros(size, observation.dtype), jnp.zeros((), bool))

    def act(self, memory: Probing, observation: Array, feedback: Feedback) -> tuple[Array, Probing]:
        """The probe policy at first, then its own."""
        own = self.actor(jnp.concatenate([observation, memory.feature]))
        return jnp.where(memory.known, own, self.body.probe(observation)), memory

    def adapt(self, memory: Probing, transitions: Transitions) -> Probing:
        """Infers z_d."""
        return Probing(self.body.dynamics.encode(transitions), jnp.ones_like(memory.known))


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


def train_ppo_dyn(problem: Problem, inputs: Inputs, key: Array) -> Training:
    """One policy for all training environments, conditioned on the z_d of a probing episode there."""
    probe_key, train_key = jax.random.split(key)
    body = bodies(problem, inputs)
    return _ppo_dyn(problem, body, probed_embeddings(problem, body, probe_key), train_key)


def untrained_ppo_dyn(problem: Problem) -> DynamicsConditioned:
    """Agents [S, ...] of PPOdyn's shapes."""
    seeds, environments = problem.config.policy_seeds, len(problem.contexts)
    features = jnp.zeros((seeds, environments, 1, problem.config.dynamics.embedding))
    return begun(_ppo_dyn(problem, untrained.bodies(problem, seeds), features, jax.random.key(0)))


def _ppo_dyn(problem: Problem, body: Body, features: Array, key: Array) -> Training:
    options, before = method_ppo(problem, problem.config.policy_seeds), probing_steps(problem)

    def assemble(actors: Actor) -> DynamicsConditioned:
        return DynamicsConditioned(actors, body)

    return task_ppo(problem, "ppo-dyn", key, options, assemble, features=features, before=before)


PPO_DYN = Method(
    "ppo-dyn",
    "one PPO policy conditioned on z_d",
    train_ppo_dyn,
    EMBEDDED,
    untrained_ppo_dyn,
    policies=one_policy,
    look=Look("PPOdyn", "#882255", 6),
)
