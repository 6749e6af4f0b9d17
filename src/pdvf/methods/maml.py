"""MAML (Finn et al. 2017): weights from which one policy gradient step on N_d transitions leads to a good policy.

The step is taken inside the policy: it sees the episode's first N_d transitions beside the observation
(`engines.wrappers.TransitionHistory`), so PPO's gradient goes through the step (second order) and PPO stays as it is.
What the paper leaves open is settled in MAML's favour, see docs/decisions/0008-baselines.md: the advantage comes from
a critic that is learned for this purpose, step sizes are learned for each unit, and exploration while probing is one
fixed offset, so that the step does not depend on luck.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array, Box, Scaler
from pdvf.engines.wrappers import TransitionHistory
from pdvf.methods.base import Feedback, Hidden, Inputs, Look, Method, Training, Transitions, one_policy
from pdvf.methods.multitask_ppo import method_ppo, task_ppo
from pdvf.paper.pipeline import Problem
from pdvf.rl.networks import Critic, FeedForward, feed_forward, make_actor_critic
from pdvf.rl.ppo import MakeNetworks

OFFSET = 0.5  # exploration while probing, of the largest action

Layers = tuple[eqx.nn.Linear, ...]


class Gradient(NamedTuple):
    """The gradient of a layer as sums over m transitions: of delta below' for its weights, of delta for its bias.

    Kept in this form, a step costs each episode m products of vectors instead of a weight matrix of its own.
    """

    below: Array  # [m, i] what the layer got
    delta: Array  # [m, o] derivative of the loss by what it gave


class MetaActor(FeedForward):
    """A Gaussian policy whose mean network makes one gradient step on the transitions it sees.

    Its observation is wide: the environment's own [o], then rows of transitions s, a, r, s', made.
    """

    observation: Scaler  # of the wide observation; the first o numbers serve for s and s' too
    layers: Layers
    log_std: Array
    value_layers: Layers  # the critic whose advantage the step follows
    step_sizes: tuple[Array, ...]  # [o] of each layer, one for each unit
    discount: float = eqx.field(static=True)

    def __call__(self, wide: Array) -> Array:
        """Mean action [a], in scaled units: explores until the transitions are there, then follows them."""
        own, transitions = self._split(wide)
        adapted = jnp.all(transitions.valid)
        return self.mean(self.gradient(transitions), adapted, own)

    def mean(self, gradient: tuple[Gradient, ...], adapted: Array, observation: Array) -> Array:
        """Mean action [a] for an observation [o] of the environment: after the step if `adapted` [], else before."""
        x = self._scale(observation)
        for i, (layer, size, g) in enumerate(zip(self.layers, self.step_sizes, gradient, strict=True)):
            along = jnp.sum(g.below * x, axis=-1, keepdims=True) + 1.0  # [m, 1]; 1 for the bias
            step = size * jnp.sum(g.delta * along, axis=0)
            x = layer(x) - jnp.where(adapted, step, 0.0)
            x = jnp.tanh(x) if i < len(self.layers) - 1 else x
        return x + jnp.where(adapted, 0.0, OFFSET)

    def gradient(self, transitions: Transitions) -> tuple[Gradient, ...]:
        """Policy gradient of each layer, for transitions [m, ...]: minus the mean of advantage times log density."""
        t = transitions
        advantage = t.reward + self.discount * self._value(t.next_observation) - self._value(t.observation)
        valid = t.valid.astype(advantage.dtype)
        weight = advantage * valid / jnp.maximum(jnp.sum(valid), 1.0)

        def one(observation: Array, action: Array, weight: Array) -> tuple[Gradient, ...]:
            below = [self._scale(observation)]
            for layer in self.layers[:-1]:
                below.append(jnp.tanh(layer(below[-1])))
            delta = -weight * (action - self.layers[-1](below[-1]))  # log density of unit variance
            found: list[Gradient] = []
            for layer, x in zip(self.layers[::-1], below[::-1], strict=True):
                found.insert(0, Gradient(x, delta))
                delta = (delta @ layer.weight) * (1.0 - x**2)
            return tuple(found)

        return jax.vmap(one)(t.observation, t.action, weight)

    def _value(self, observations: Array) -> Array:
        """Values [m] of observations [m, o]."""
        return jax.vmap(lambda o: feed_forward(self.value_layers, self._scale(o)))(observations)[:, 0]

    def _scale(self, observation: Array) -> Array:
        o = observation.shape[-1]
        return (observation - self.observation.centre[:o]) / self.observation.width[:o]

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
        size = tuple(jnp.full(layer.weight.shape[0], step) for layer in base.layers)
        actor = MetaActor(Scaler.from_box(observation), base.layers, base.log_std, value.layers, size, discount)
        return actor, critic

    return make


class Adapting(NamedTuple):
    """The gradient that the episode's weights have moved along, and whether they have []."""

    gradient: tuple[Gradient, ...]
    adapted: Array


class MetaAgent(eqx.Module):
    """Explores for N_d steps, makes one gradient step, and acts with the new weights to the end."""

    actor: MetaActor
    probe_steps: int = eqx.field(static=True)

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Adapting:
        """The meta-learned weights."""
        m, dtype = self.probe_steps, observation.dtype
        shapes = [layer.weight.shape for layer in self.actor.layers]
        empty = tuple(Gradient(jnp.zeros((m, i), dtype), jnp.zeros((m, o), dtype)) for o, i in shapes)
        return Adapting(empty, jnp.zeros((), bool))

    def act(self, memory: Adapting, observation: Array, feedback: Feedback) -> tuple[Array, Adapting]:
        """The mean under the present weights."""
        return self.actor.mean(memory.gradient, memory.adapted, observation), memory

    def adapt(self, memory: Adapting, transitions: Transitions) -> Adapting:
        """The gradient step."""
        return Adapting(self.actor.gradient(transitions), jnp.ones_like(memory.adapted))


def train_maml(problem: Problem, inputs: Inputs, key: Array) -> Training:
    """Meta-training on all training environments."""
    seeds, family, given = problem.config.policy_seeds, problem.engine.family, problem.config.baselines
    options = method_ppo(problem, seeds, environments=given.meta_batch, minibatches=given.meta_batches)
    networks = meta_networks(family.observation, options.discount, given.meta_step)

    def assemble(actor: Any) -> MetaAgent:
        return MetaAgent(actor, family.probe_steps)

    return task_ppo(problem, "maml", key, options, assemble, make_networks=networks, wrap=TransitionHistory)


MAML = Method(
    "maml",
    "one gradient step on N_d transitions at test time",
    train_maml,
    rewarded=True,
    policies=one_policy,
    ensemble=True,
    look=Look("MAML", "#56b4e9", 5),
)
