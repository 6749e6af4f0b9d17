"""PD-VF-plus by experience (ours): the trained policy that did best in the training environments most alike.

Every finished policy of phase 1 is played in every training environment beforehand. At test time, z_d of the N_d
probing steps says how much each training environment counts, and the policy with the best weighted return acts: a
value function W(pi, z_d) without parameters, over the policies there are, and nothing is lost in decoding.

With `plus.looks` above 1 the choice is looked at again during the episode: the reward that the acting policy has
earned says anew which training environments this one is like, and a policy that disappoints is given up.

With `plus.generalist` one of PPOall's policies joins them, that with the best mean return. It probes, and it goes on
unless another promises far more, once promises are cut by what was too much in them where environments were left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.adapt import Adapter
from pdvf.config import PlusOptions
from pdvf.families.base import Array
from pdvf.methods.base import AtOnce, Feedback, Hidden, Inputs, Transitions, agent_artefact
from pdvf.methods.conditioned import infer, probed_embeddings
from pdvf.pipeline import Problem, finished_policies, transfer
from pdvf.rl.networks import Actor
from pdvf.value.body import Body


class Trial(NamedTuple):
    """What is known in the middle of an episode. Rewards are per step."""

    policy: Array  # [] that acts; -1 while probing
    weights: Array  # [E] logarithms, of the training environments
    earned: Array  # [K] mean reward of each policy in this episode, not a number where it has not acted
    steps: Array  # [] that the policy has made since the last look
    reward: Array  # [] sum over those that count


class Experienced(eqx.Module):
    """One of K policies: the one with the best rewards in the training environments nearby."""

    actors: Actor  # [K, ...]
    rewards: Array  # [K, E] mean return of each policy in each training environment, divided by the horizon
    excess: Array  # [K] how much of what they promise does not come, where they have not been
    z_d: Array  # [E, d]
    width: Array  # [] how near is near
    doubt: Array  # [] standard deviation of rewards around `rewards`
    body: Body
    window: int = eqx.field(static=True)  # steps between two looks; 0 for none
    options: PlusOptions = eqx.field(static=True)

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Trial:
        """Nothing is known."""
        del hidden
        count, environments = self.rewards.shape
        zero, dtype = jnp.zeros((), observation.dtype), observation.dtype
        return Trial(
            jnp.full((), -1), jnp.zeros(environments, dtype), jnp.full(count, jnp.nan, dtype), jnp.zeros((), int), zero
        )

    def adapt(self, memory: Trial, transitions: Transitions) -> Trial:
        """Weighs the training environments by z_d, and takes the best policy."""
        distance = jnp.sum((self.z_d - infer(self.body, transitions)) ** 2, axis=-1)
        weights = jax.nn.log_softmax(-distance / (2 * self.width**2))
        expected = self.rewards @ jnp.exp(weights) - self.excess
        # The generalist, the last of the policies, has probed and is not left lightly; a mere probe is.
        policy = self._better(expected, -1) if self.options.generalist else jnp.argmax(expected)
        return memory._replace(policy=policy.astype(memory.policy.dtype), weights=weights)

    def act(self, memory: Trial, observation: Array, feedback: Feedback) -> tuple[Array, Trial]:
        """The probe policy at first, then the chosen one."""
        if self.window:
            memory = self._look(memory, feedback.reward)
        known = memory.policy >= 0
        own = jax.tree.map(lambda x: x[memory.policy], self.actors)(observation)
        memory = memory._replace(steps=memory.steps + known.astype(memory.steps.dtype))
        return jnp.where(known, own, self.body.probe(observation)), memory

    def _look(self, memory: Trial, reward: Array) -> Trial:
        """Counts the last step's reward; at the end of a window, weighs and chooses again."""
        settling = int(self.options.settling * self.window)
        m = memory._replace(reward=memory.reward + jnp.where(memory.steps > settling, reward, 0.0))
        rate = m.reward / (self.window - settling)
        weights = m.weights - (rate - self.rewards[m.policy]) ** 2 / (2 * self.doubt**2)
        earned = m.earned.at[m.policy].set(rate)
        expected = self.rewards @ jax.nn.softmax(weights) - self.excess
        expected = jnp.where(jnp.isnan(earned), expected, earned)
        policy = self._better(expected, m.policy).astype(m.policy.dtype)
        looked = Trial(policy, weights, earned, jnp.zeros_like(m.steps), jnp.zeros_like(m.reward))
        return jax.tree.map(lambda new, old: jnp.where(m.steps == self.window, new, old), looked, m)

    def _better(self, expected: Array, now: Array | int) -> Array:
        """The policy [] with the best of expected rewards [K], if it is `patience` times that of the one that acts."""
        best = jnp.argmax(expected)
        leave = expected[best] > self.options.patience * jnp.maximum(expected[now], 0.0)
        return jnp.where(leave, best, jnp.arange(expected.shape[0])[now])


def train_by_experience(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """Plays the finished policies; nothing is learned."""
    adapter: Adapter = inputs["adapter"]
    options, horizon, seeds = problem.config.plus, problem.engine.family.horizon, adapter.train_z_d.shape[0]
    contexts = jnp.asarray(problem.contexts)

    @jax.jit
    def play(actors: Actor) -> Array:
        """Mean returns [K, E]."""
        many = jnp.repeat(contexts, options.episodes, axis=0)
        played = transfer(problem.engine, many, actors, key)
        return jnp.mean(played.reshape(played.shape[0], contexts.shape[0], options.episodes), axis=-1)

    def make() -> Experienced:
        actors, body, z_d = finished_policies(inputs["policies"]), adapter.body, adapter.train_z_d
        returns = play(actors)
        doubt = jnp.maximum(options.doubt * jnp.std(returns) / horizon, 1e-6)
        home = jnp.repeat(jnp.arange(contexts.shape[0]), returns.shape[0] // contexts.shape[0])
        generalist = _best(inputs[agent_artefact("ppo-all")].actor, play) if options.generalist else None
        if generalist is not None:
            body = eqx.tree_at(lambda b: b.probe, body, _repeated(generalist[0], seeds))
            z_d = jnp.mean(probed_embeddings(problem, body, jax.random.fold_in(key, 1)), axis=2)

        def learn(z_d: Array) -> tuple[Array, Array]:
            width = (options.width or best_width(returns, home, z_d)) * spacing(z_d)
            promised, given = left_out(returns, home, z_d, width)
            return width, jnp.full(returns.shape[0], jnp.maximum(jnp.mean(promised - given), 0.0) / horizon)

        width, excess = jax.vmap(learn)(z_d)
        if generalist is not None:
            actors, returns = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), (actors, returns), generalist)
            excess = jnp.pad(excess, ((0, 0), (0, 1)))
        actors, rewards, doubt = _repeated((actors, returns / horizon, doubt), seeds)
        window = horizon // options.looks if options.looks > 1 else 0
        return Experienced(actors, rewards, excess, z_d, width, doubt, body, window, options)

    return AtOnce("pd-vf-plus", make)


def _best(actors: Actor, play: Callable[[Actor], Array]) -> tuple[Actor, Array]:
    """Of policies [P, ...] the one with the best mean return, and its returns [E]."""
    returns = play(actors)
    best = jnp.argmax(jnp.mean(returns, axis=-1))
    return jax.tree.map(lambda x: x[best], (actors, returns))


def _repeated(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def best_width(returns: Array, home: Array, z_d: Array) -> Array:
    """The one of `WIDTHS` [] whose choices return most in training environments that are left out one at a time."""
    widths = jnp.asarray(WIDTHS, z_d.dtype)
    scores = jax.vmap(lambda width: jnp.mean(left_out(returns, home, z_d, width * spacing(z_d))[1]))(widths)
    return widths[jnp.argmax(scores)]


def left_out(returns: Array, home: Array, z_d: Array, width: Array) -> tuple[Array, Array]:
    """What the choice promises and what it gives [E] where each training environment is left out with its policies.

    From returns [K, E], the environment [K] that each policy is at home in, and z_d [E, d].
    """
    distance = jnp.sum((z_d[:, None] - z_d[None]) ** 2, axis=-1)
    places = jnp.arange(z_d.shape[0])

    def one(out: Array) -> tuple[Array, Array]:
        near = jnp.where(places == out, -jnp.inf, -distance[out] / (2 * width**2))
        expected = jnp.where(home == out, -jnp.inf, returns @ jax.nn.softmax(near))
        best = jnp.argmax(expected)
        return expected[best], returns[best, out]

    return jax.vmap(one)(places)


WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def spacing(z_d: Array) -> Array:
    """The mean distance [] from an environment of z_d [E, d] to the next."""
    apart = jnp.linalg.norm(z_d[:, None] - z_d[None], axis=-1) + jnp.where(jnp.eye(z_d.shape[0]) > 0, jnp.inf, 0.0)
    return jnp.maximum(jnp.mean(jnp.min(apart, axis=-1)), 1e-6)
