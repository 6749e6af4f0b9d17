"""PD-VF-plus by experience (ours): the trained policy that did best in the training environments most alike.

Every finished policy of phase 1 is played in every training environment beforehand. At test time, z_d of the N_d
probing steps says what to expect of each policy, by a Gaussian process over the training environments, and the most
promising one acts: a value function W(pi, z_d) over the policies there are, and nothing is lost in decoding.

With `plus.generalist` one of PPOall's policies joins them, that with the best mean return. It probes, or an action to
begin with does for it where the family can tell how near the end is, and it goes on unless another promises far more,
once promises are cut by what was too much in them where environments were left out. With `plus.still` doing nothing
probes, and a linear discriminant stands in for the encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.config import PlusOptions
from pdvf.core.arrays import Array
from pdvf.core.objective import objective_of
from pdvf.families.base import GuardedFamily
from pdvf.methods.base import AtOnce, Feedback, Hidden, Inputs, Transitions, agent_artefact
from pdvf.methods.brace import brace
from pdvf.methods.multitask_ppo import probed_embeddings
from pdvf.methods.recognise import recognise
from pdvf.paper.adapter import Adapter
from pdvf.paper.pipeline import Problem, finished_policies, transfer
from pdvf.paper.prober import Body
from pdvf.rl.networks import Actor

WIDTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
NOISES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Among which the likeliest are looked for: widths in units of `spacing`, noises as in `KernelParams`."""


class KernelParams(NamedTuple):
    """How near is near [], and the noise [] of a return: a variance, as a share of that between environments."""

    width: Array
    noise: Array


class Experienced(eqx.Module):
    """One of K policies: the one with the best returns in the training environments nearby."""

    actors: Actor  # [K, ...]
    returns: Array  # [K, E] mean return of each policy in each training environment
    excess: Array  # [K] how much of what they promise does not come, where they have not been
    z_d: Array  # [E, d]
    kernel: KernelParams
    body: Body
    options: PlusOptions = eqx.field(static=True)

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """No policy is chosen yet: -1."""
        del observation, hidden
        return jnp.full((), -1)

    def adapt(self, memory: Array, transitions: Transitions) -> Array:
        """Expects of each policy what it did in training environments with a z_d nearby, and takes the best."""
        expected = posterior_mean(self.returns, self.z_d, self.body.infer(transitions), self.kernel) - self.excess
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
    contexts, summary = jnp.asarray(problem.contexts), objective_of(problem.engine.family).summary

    @jax.jit
    def play(actors: Actor) -> Array:
        """What their episodes are worth together [K, E]."""
        many = jnp.repeat(contexts, options.episodes, axis=0)
        played = transfer(problem.engine, many, actors, key)
        return summary(played.reshape(played.shape[0], contexts.shape[0], options.episodes), -1)

    def make() -> Experienced:
        actors, body, z_d = finished_policies(inputs["policies"]), adapter.body, adapter.train_z_d
        returns = play(actors)
        home = jnp.repeat(jnp.arange(contexts.shape[0]), returns.shape[0] // contexts.shape[0])
        generalist = _best(inputs[agent_artefact("ppo-all")].actor, play, summary) if options.generalist else None
        if generalist is not None:
            guarded = isinstance(problem.engine.family, GuardedFamily)
            probe = brace(problem, generalist[0], jax.random.fold_in(key, 2)) if guarded else generalist[0]
            body = eqx.tree_at(lambda b: b.probe, body, _repeated(probe, seeds))
            z_d = jnp.mean(probed_embeddings(problem, body, jax.random.fold_in(key, 1)), axis=2)
        elif options.still:
            keys = jax.random.split(jax.random.fold_in(key, 3), seeds)
            one = jax.tree.map(lambda x: x[0], actors)
            zero_action, discriminant, z_d = jax.jit(jax.vmap(lambda k: recognise(problem, one, k)))(keys)
            body = eqx.tree_at(lambda b: (b.probe, b.dynamics), body, (zero_action, discriminant))

        def learn(z_d: Array) -> tuple[KernelParams, Array]:
            kernel = fit_hyperparameters(returns, z_d, (options.width,) if options.width else WIDTHS)
            promised, given = left_out(returns, home, z_d, kernel)
            return kernel, jnp.full(returns.shape[0], jnp.maximum(jnp.mean(promised - given), 0.0))

        kernel, excess = jax.vmap(learn)(z_d)
        if generalist is not None:
            actors, returns = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), (actors, returns), generalist)
            excess = jnp.pad(excess, ((0, 0), (0, 1)))
        actors, returns = _repeated((actors, returns), seeds)
        return Experienced(actors, returns, excess, z_d, kernel, body, options)

    return AtOnce("pd-vf-plus", make)


def _best(actors: Actor, play: Callable[[Actor], Array], summary: Any) -> tuple[Actor, Array]:
    """Of policies [P, ...] the one with the best mean return, and its returns [E]."""
    returns = play(actors)
    best = jnp.argmax(summary(returns, -1))
    return jax.tree.map(lambda x: x[best], (actors, returns))


def _repeated(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def posterior_mean(returns: Array, z_d: Array, place: Array, kernel: KernelParams, known: Array | None = None) -> Array:
    """Expected returns [K] at a place [d], by a Gaussian process for each policy of returns [K, E] known at z_d [E, d].

    Far from all of them it is the policy's mean. `known` [E] says which environments count; all, for none.
    """
    counts = jnp.ones(z_d.shape[0], z_d.dtype) if known is None else known.astype(z_d.dtype)
    mean = returns @ counts / jnp.sum(counts)
    among = rbf_kernel(z_d, z_d, kernel.width) * counts[:, None] * counts
    towards = rbf_kernel(z_d, place[None], kernel.width)[:, 0] * counts
    weights = jnp.linalg.solve(among + kernel.noise * jnp.eye(z_d.shape[0], dtype=z_d.dtype), towards)
    return mean + (returns - mean[:, None]) @ weights


def fit_hyperparameters(returns: Array, z_d: Array, widths: tuple[float, ...]) -> KernelParams:
    """The width and the noise under which returns [K, E] are likeliest, whatever their scale and each policy's mean.

    What an environment gives to all policies alike says nothing about the choice among them, and is taken off before.
    """
    own = returns - jnp.mean(returns, axis=0)
    count = z_d.shape[0]
    apart = spacing(z_d)

    def likelihood(kernel: KernelParams) -> Array:
        """Twice its logarithm, restricted to what differs between environments."""
        covariance = rbf_kernel(z_d, z_d, kernel.width) + kernel.noise * jnp.eye(count, dtype=z_d.dtype)
        precision = jnp.linalg.inv(covariance)
        total = jnp.sum(precision, axis=1)
        contrasts = precision - jnp.outer(total, total) / jnp.sum(total)
        scale = jnp.mean(jnp.sum((own @ contrasts) * own, axis=1)) / max(count - 1, 1)
        determinants = jnp.linalg.slogdet(covariance)[1] + jnp.log(jnp.sum(total))
        return -(count - 1) * jnp.log(jnp.maximum(scale, jnp.finfo(scale.dtype).tiny)) - determinants

    width, noise = (x.reshape(-1) for x in jnp.meshgrid(jnp.array(widths, z_d.dtype), jnp.array(NOISES, z_d.dtype)))
    candidates = KernelParams(width * apart, noise)
    found = jax.vmap(likelihood)(candidates)
    best = jnp.argmax(found > jnp.max(found) - 0.01)  # of those as likely, the least noise and the least width
    return KernelParams(candidates.width[best], candidates.noise[best])


def left_out(returns: Array, home: Array, z_d: Array, kernel: KernelParams) -> tuple[Array, Array]:
    """What the choice promises and what it gives [E] where each training environment is left out with its policies.

    From returns [K, E], the environment [K] that each policy is at home in, and z_d [E, d].
    """
    places = jnp.arange(z_d.shape[0])

    def one(out: Array) -> tuple[Array, Array]:
        expected = posterior_mean(returns, z_d, z_d[out], kernel, places != out)
        expected = jnp.where(home == out, -jnp.inf, expected)
        best = jnp.argmax(expected)
        return expected[best], returns[best, out]

    return jax.vmap(one)(places)


def rbf_kernel(a: Array, b: Array, width: Array) -> Array:
    """How much the environments [n, d] and [m, d] have to say about each other, [n, m]: 1 where they are one."""
    return jnp.exp(-jnp.sum((a[:, None] - b[None]) ** 2, axis=-1) / (2 * width**2))


def spacing(z_d: Array) -> Array:
    """The mean distance [] from an environment of z_d [E, d] to the next."""
    apart = jnp.linalg.norm(z_d[:, None] - z_d[None], axis=-1) + jnp.where(jnp.eye(z_d.shape[0]) > 0, jnp.inf, 0.0)
    return jnp.maximum(jnp.mean(jnp.min(apart, axis=-1)), 1e-6)
