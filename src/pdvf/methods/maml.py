"""MAML (Finn et al. 2017): weights from which one policy gradient step on N_d transitions leads to a good policy.

The step is taken inside the policy: it sees the episode's first N_d transitions beside the observation
(`engines.tasks.Recalled`), so PPO's gradient goes through the step (second order) and PPO itself stays as it is.
What the paper leaves open is settled in MAML's favour, see docs/decisions/0008-baselines.md: the advantage comes from
a critic that is learned for this purpose, step sizes are learned for each weight, and exploration while probing is one
fixed offset, so that the step does not depend on luck.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.engines.tasks import Recalled
from pdvf.families.base import Array, Box
from pdvf.methods.base import Feedback, Hidden, Inputs, Method, Transitions
from pdvf.methods.conditioned import TaskPPO, method_ppo, no_features, uniform
from pdvf.pipeline import Problem
from pdvf.rl.networks import Critic, Scaler, make_actor_critic
from pdvf.rl.ppo import MakeNetworks

OFFSET = 0.5  # exploration while probing, of the largest action

Layers = tuple[eqx.nn.Linear, ...]


class MetaActor(eqx.Module):
    """A Gaussian policy whose mean network makes one gradient step on the transitions it sees.

    Its observation is wide: the environment's own [o], then rows of transitions s, a, r, s', made.
    """

    observation: Scaler  # of the wide observation; the first o numbers serve for s and s' too
    layers: Layers
    log_std: Array
    value_layers: Layers  # the critic whose advantage the step follows
    step_size: Layers  # one for each weight
    discount: float = eqx.field(static=True)

    def __call__(self, wide: Array) -> Array:
        """Mean action [a], in scaled units: explores until the transitions are there, then follows them."""
        own, transitions = self._split(wide)
        probing = jnp.logical_not(jnp.all(transitions.valid))
        adapted = self.adapted(transitions)
        explore = jax.tree.map(lambda new, old: jnp.where(probing, old, new), adapted, self.layers)
        return self.feed(explore, own) + jnp.where(probing, OFFSET, 0.0)

    def adapted(self, transitions: Transitions) -> Layers:
        """Weights after one step of policy gradient on transitions [m, ...]."""
        t = transitions
        value = jax.vmap(lambda s: self.feed(self.value_layers, s)[0])
        advantage = t.reward + self.discount * value(t.next_observation) - value(t.observation)

        def loss(layers: Layers) -> Array:
            mean = jax.vmap(lambda s: self.feed(layers, s))(t.observation)
            log_density = -0.5 * jnp.sum((jax.lax.stop_gradient(t.action) - mean) ** 2, axis=-1)
            return -jnp.sum(advantage * log_density * t.valid) / jnp.maximum(jnp.sum(t.valid), 1.0)

        gradient = jax.grad(loss)(self.layers)
        return jax.tree.map(lambda w, size, g: w - size * g, self.layers, self.step_size, gradient)

    def feed(self, layers: Layers, observation: Array) -> Array:
        """Output of a network for an observation [o] of the environment."""
        o = observation.shape[-1]
        x = (observation - self.observation.centre[:o]) / self.observation.width[:o]
        for layer in layers[:-1]:
            x = jnp.tanh(layer(x))
        return layers[-1](x)

    def _split(self, wide: Array) -> tuple[Array, Transitions]:
        """Own observation [o] and transitions [m, ...] of a wide one; m follows from the sizes."""
        a = self.log_std.shape[-1]
        o = self.layers[0].weight.shape[-1]
        rows = wide[o:].reshape(-1, 2 * o + a + 2)
        s, action, reward, following, made = jnp.split(rows, (o, o + a, o + a + 1, 2 * o + a + 1), axis=-1)
        return wide[:o], Transitions(s, action, reward[:, 0], following, made[:, 0] > 0)


def meta_networks(own: Box, discount: float, step: float) -> MakeNetworks:
    """Makes a `MetaActor` and a critic that sees all of the wide observation."""

    def make(observation: Box, action: Box, hidden: int, key: Array) -> tuple[MetaActor, Critic]:
        actor_key, critic_key, value_key = jax.random.split(key, 3)
        base, _ = make_actor_critic(own, action, hidden, actor_key)
        _, critic = make_actor_critic(observation, action, hidden, critic_key)
        _, value = make_actor_critic(own, action, hidden, value_key)
        size = jax.tree.map(lambda w: jnp.full_like(w, step), base.layers)
        actor = MetaActor(Scaler.from_box(observation), base.layers, base.log_std, value.layers, size, discount)
        return actor, critic

    return make


class Adapting(eqx.Module):
    """The network's weights at this moment of the episode, and whether they have been adapted []."""

    layers: Layers
    adapted: Array


class MetaAgent(eqx.Module):
    """Explores for N_d steps, makes one gradient step, and acts with the new weights to the end."""

    actor: MetaActor

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Adapting:
        """The meta-learned weights."""
        del observation, hidden
        return Adapting(self.actor.layers, jnp.zeros((), bool))

    def act(self, memory: Adapting, observation: Array, feedback: Feedback) -> tuple[Array, Adapting]:
        """The mean under the present weights."""
        del feedback
        return self.actor.feed(memory.layers, observation) + jnp.where(memory.adapted, 0.0, OFFSET), memory

    def adapt(self, memory: Adapting, transitions: Transitions) -> Adapting:
        """The gradient step."""
        return Adapting(self.actor.adapted(transitions), jnp.ones_like(memory.adapted))


def train_maml(problem: Problem, inputs: Inputs, key: Array) -> TaskPPO:
    """Meta-training on all training environments."""
    del inputs
    seeds, given = problem.config.policy_seeds, problem.config.baselines
    options = replace(method_ppo(problem), environments=given.meta_batch, minibatches=given.meta_batches)

    def assemble(actor: Any) -> MetaAgent:
        return MetaAgent(actor)

    return TaskPPO(
        problem,
        "maml",
        key,
        options,
        uniform(problem, seeds),
        no_features(problem, seeds),
        assemble,
        meta_networks(problem.engine.family.observation, options.discount, given.meta_step),
        Recalled,
    )


MAML = Method("maml", "one gradient step on N_d transitions at test time", train_maml)
