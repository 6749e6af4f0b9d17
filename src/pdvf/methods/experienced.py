"""PD-VF-plus by experience (ours): the trained policy that did best in the training environments most alike.

Every finished policy of phase 1 is played in every training environment beforehand. At test time, z_d of the N_d
probing steps says how much each training environment counts, and the policy with the best weighted return acts: a
value function W(pi, z_d) without parameters, over the policies there are, and nothing is lost in decoding.

With `plus.generalist` one of PPOall's policies joins them, that with the best mean return. It probes, or an action to
begin with does for it where the family can tell how near the end is, and it goes on unless another promises far more,
once promises are cut by what was too much in them where environments were left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.adapt import Adapter
from pdvf.config import PlusOptions
from pdvf.families.base import Array, GuardedFamily
from pdvf.methods.base import AtOnce, Feedback, Hidden, Inputs, Transitions, agent_artefact
from pdvf.methods.brace import brace
from pdvf.methods.conditioned import infer, probed_embeddings
from pdvf.pipeline import Problem, finished_policies, transfer
from pdvf.rl.networks import Actor
from pdvf.value.body import Body


class Experienced(eqx.Module):
    """One of K policies: the one with the best returns in the training environments nearby."""

    actors: Actor  # [K, ...]
    returns: Array  # [K, E] mean return of each policy in each training environment
    excess: Array  # [K] how much of what they promise does not come, where they have not been
    z_d: Array  # [E, d]
    width: Array  # [] how near is near
    body: Body
    options: PlusOptions = eqx.field(static=True)

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """No policy is chosen yet: -1."""
        del observation, hidden
        return jnp.full((), -1)

    def adapt(self, memory: Array, transitions: Transitions) -> Array:
        """Weighs the training environments by z_d, and takes the best policy."""
        distance = jnp.sum((self.z_d - infer(self.body, transitions)) ** 2, axis=-1)
        expected = self.returns @ jax.nn.softmax(-distance / (2 * self.width**2)) - self.excess
        best = jnp.argmax(expected)
        if self.options.generalist:  # the last of the policies, which has probed and is not left lightly
            leave = expected[best] > self.options.patience * jnp.maximum(expected[-1], 0.0)
            best = jnp.where(leave, best, expected.shape[0] - 1)
        return best.astype(memory.dtype)

    def act(self, memory: Array, observation: Array, feedback: Feedback) -> tuple[Array, Array]:
        """The probe policy at first, then the chosen one."""
        del feedback
        own = jax.tree.map(lambda x: x[memory], self.actors)(observation)
        return jnp.where(memory >= 0, own, self.body.probe(observation)), memory


def train_by_experience(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """Plays the finished policies; nothing is learned."""
    adapter: Adapter = inputs["adapter"]
    options, seeds = problem.config.plus, adapter.train_z_d.shape[0]
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
        home = jnp.repeat(jnp.arange(contexts.shape[0]), returns.shape[0] // contexts.shape[0])
        generalist = _best(inputs[agent_artefact("ppo-all")].actor, play) if options.generalist else None
        if generalist is not None:
            guarded = isinstance(problem.engine.family, GuardedFamily)
            probe = brace(problem, generalist[0], jax.random.fold_in(key, 2)) if guarded else generalist[0]
            body = eqx.tree_at(lambda b: b.probe, body, _repeated(probe, seeds))
            z_d = jnp.mean(probed_embeddings(problem, body, jax.random.fold_in(key, 1)), axis=2)

        def learn(z_d: Array) -> tuple[Array, Array]:
            width = (options.width or best_width(returns, home, z_d)) * spacing(z_d)
            promised, given = left_out(returns, home, z_d, width)
            return width, jnp.full(returns.shape[0], jnp.maximum(jnp.mean(promised - given), 0.0))

        width, excess = jax.vmap(learn)(z_d)
        if generalist is not None:
            actors, returns = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), (actors, returns), generalist)
            excess = jnp.pad(excess, ((0, 0), (0, 1)))
        actors, returns = _repeated((actors, returns), seeds)
        return Experienced(actors, returns, excess, z_d, width, body, options)

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
