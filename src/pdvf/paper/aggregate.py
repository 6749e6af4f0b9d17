"""Training of the value function with data aggregation, and aggregation for the policy decoder (section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from pdvf.config import ValueOptions
from pdvf.core.arrays import Array
from pdvf.core.networks import unit
from pdvf.engines.base import Engine
from pdvf.engines.rollout import subsample
from pdvf.paper.policy import PolicyDecoder, add_noise
from pdvf.paper.prober import Body, Scores
from pdvf.paper.quadratic import QuadraticValue, mean_matrix, optimal_policy_embedding
from pdvf.paper.trajectories import Trajectories
from pdvf.rl.networks import Actor

HELD_OUT = 5  # every fifth policy embedding is held out


class ReturnScale(NamedTuple):
    """Returns are mapped to [0, 1] for W, since A is positive semi-definite, and raised to a power.

    A power above 1 spreads good returns and presses bad ones together: W need only tell good policies apart. For the
    same reason each environment may have a range of its own: how kind it is to all policies says nothing about which
    of them to choose.
    """

    low: Array  # [], or [E] for each training environment
    high: Array
    power: Array

    @classmethod
    def of(cls, returns: Array, options: ValueOptions) -> ReturnScale:
        """The range of returns [Z, E]."""
        axis = 0 if options.own_range else None
        return cls(jnp.min(returns, axis), jnp.max(returns, axis), jnp.asarray(options.power))

    def at(self, environment: Array) -> ReturnScale:
        """That of training environments [...]."""
        if self.low.ndim == 0:
            return self
        return ReturnScale(self.low[environment], self.high[environment], self.power)

    def scale(self, returns: Array) -> Array:
        """Returns in W's units."""
        return jnp.maximum((returns - self.low) / (self.high - self.low), 0.0) ** self.power

    def unscale(self, values: Array) -> Array:
        """W's values in units of return."""
        return jnp.maximum(values, 0.0) ** (1 / self.power) * (self.high - self.low) + self.low


class Labelled(NamedTuple):
    """States and the decision an embedding's expert makes there: [N, e], [N, T, o], [N, T, a], [N, T]."""

    z_pi: Array
    observation: Array
    decision: Array
    valid: Array


def extra_embeddings(bank: Array, options: ValueOptions, key: Array) -> Array:
    """Policy embeddings that no training policy has: between two of the bank [B, e], and uniform on the sphere."""
    *keys, uniform_key = jax.random.split(key, 4)
    uniform = jax.random.normal(uniform_key, (options.uniform, bank.shape[-1]))
    return jnp.concatenate([between(bank, options.interpolations, keys), unit(uniform)])


def between(bank: Array, count: int, keys: Sequence[Array]) -> Array:
    """Embeddings [count, e] between two of the bank [B, e] each, with a little noise; takes three keys."""
    pair_key, weight_key, noise_key = keys
    first, second = bank[jax.random.randint(pair_key, (2, count), 0, bank.shape[0])]
    second = second * jnp.sign(jnp.sum(first * second, axis=-1, keepdims=True))  # z and -z are one policy
    weight = jax.random.uniform(weight_key, (count, 1))
    noise = 0.05 * jax.random.normal(noise_key, first.shape)
    return unit(weight * first + (1 - weight) * second + noise)


def optimal_embeddings(members: QuadraticValue, s0: Array, z_d: Array) -> tuple[Array, Array]:
    """OPEs [n, e] and their predicted values [n] for initial states [n, o] and dynamics embeddings [n, d]."""
    return jax.vmap(lambda s, z: optimal_policy_embedding(mean_matrix(members, s, z)))(s0, z_d)


def play_optimal(
    engine: Engine,
    contexts: Array,
    body: Body,
    members: QuadraticValue,
    options: ValueOptions,
    noise: float,
    key: Array,
) -> tuple[Scores, Array, Array]:
    """Plays OPEs for every training context [E, c], `probes` each, half of them jittered, in all of these contexts.

    Returns the scores [E * probes, ...], and predicted and actual return of the OPEs that were not jittered, in the
    environment they were meant for.
    """
    probe_key, jitter_key, width_key, score_key = jax.random.split(key, 4)
    home = jnp.repeat(jnp.arange(contexts.shape[0]), options.probes)
    probed = body.begin(engine, jnp.asarray(contexts)[home], probe_key, noise)
    z_pi, predicted = optimal_embeddings(members, probed.s0, probed.z_d)
    odd = (jnp.arange(home.shape[0]) % 2)[:, None]
    width = options.jitter * jax.random.uniform(width_key, odd.shape) * odd
    z_pi = unit(z_pi + width * jax.random.normal(jitter_key, z_pi.shape))
    scores = body.score(engine, contexts, z_pi, score_key, noise)._replace(home=home)
    own = scores.returns[jnp.arange(home.shape[0]), home]
    return scores, predicted[::2], own[::2]


class Grid(NamedTuple):
    """A batch: r policy embeddings, each with its returns in all E environments."""

    z_pi: Array  # [r, e]
    s0: Array  # [E, o]
    z_d: Array  # [E, d]
    target: Array  # [r, E] scaled return
    weight: Array  # [r, E]; the weights of an embedding sum to 1


def draw(scores: Scores, rows: Array, scale: ReturnScale, own: float, count: int, key: Array, held_out: bool) -> Grid:
    """`count` of the first `rows` embeddings of a table; an embedding's own environment weighs `own` more.

    Each environment is seen through one of its probes, which all embeddings share: A(s0, z_d), the costly part of W,
    is then worked out once for an environment instead of once for a pair (docs/decisions/0005-value.md).
    """
    row_key, probe_key = jax.random.split(key)
    environments = jnp.arange(scores.returns.shape[1])

    def some(count: int, key: Array) -> Array:
        block_key, offset_key = jax.random.split(key)
        row = jax.random.randint(block_key, (count,), 0, jnp.maximum(rows // HELD_OUT, 1)) * HELD_OUT
        if held_out:
            return row
        return row + jax.random.randint(offset_key, (count,), 1, jnp.clip(rows - row, 2, HELD_OUT))

    row = some(count, row_key)
    probe = (some(environments.shape[0], probe_key), environments)
    at_home = scores.home[row][:, None] == environments
    weight = jnp.where(at_home, own, 0.0) + (1 - own) / environments.shape[0]
    return Grid(scores.z_pi[row], scores.s0[probe], scores.z_d[probe], scale.scale(scores.returns[row]), weight)


def value_error(members: QuadraticValue, grid: Grid, options: ValueOptions) -> Array:
    """Squared error of W, summed over members [M, ...].

    W need not be right about bad policies, only not too hopeful: a quadratic form that spends its few numbers on
    ranking the bad ones is wrong about the best (docs/decisions/0005-value.md).
    """

    def predict(member: QuadraticValue) -> Array:
        lower = jax.vmap(member.lower)(grid.s0, grid.z_d)  # [E, e, e]
        return jnp.sum(jnp.einsum("eij,ri->rej", lower, grid.z_pi) ** 2, axis=-1)

    predicted = jax.vmap(predict)(members)  # [M, r, E]
    lenient = (predicted < grid.target) & (grid.target < options.high_return)
    weight = jnp.where(lenient, options.underestimation, 1.0) * grid.weight
    return jnp.sum(weight * (predicted - grid.target) ** 2) / grid.z_pi.shape[0]


def value_loss(
    members: QuadraticValue,
    original: Scores,
    aggregated: Scores,
    filled: Array,
    scale: ReturnScale,
    options: ValueOptions,
    key: Array,
    held_out: bool,
) -> Array:
    """Error of W on a batch: half original, half aggregated once there is any."""
    keys = jax.random.split(key)
    count = max(options.batch // (2 * original.returns.shape[1]), 1)
    first = draw(original, jnp.asarray(original.z_pi.shape[0]), scale, 0.0, count, keys[0], held_out)
    second = draw(aggregated, filled, scale, options.own_environment, count, keys[1], held_out)
    errors = value_error(members, first, options), value_error(members, second, options)
    return jnp.where(filled > 0, 0.5 * errors[0] + 0.5 * errors[1], errors[0])


def make_members(observation, z_d: int, z_pi: int, options: ValueOptions, key: Array) -> QuadraticValue:
    """Fresh quadratic forms, stacked [M, ...]."""
    keys = jax.random.split(key, options.members)
    return jax.vmap(lambda key: QuadraticValue(observation, z_d, z_pi, options.hidden, key))(keys)


def visit_and_label(
    engine: Engine, contexts: Array, body: Body, experts: Actor, bank: Array, count: int, kept: int, key: Array
) -> Labelled:
    """States visited by decoded training embeddings, labelled by the expert each embedding came from.

    `experts` are [C, ...] and `bank` [C, E, e] holds their embeddings; `count` episodes are played and `kept` steps
    of each are labelled, all of them if that is 0.
    """
    choose_key, probe_key, play_key = jax.random.split(key, 3)
    limits = jnp.array([bank.shape[0], bank.shape[1], contexts.shape[0]])
    policy, origin, environment = jax.random.randint(choose_key, (3, count), 0, limits[:, None])
    z_pi, flat = bank[policy, origin], jnp.asarray(contexts)[environment]
    probed = body.begin(engine, flat, probe_key)
    _, steps = body.finish(engine, flat, probed, z_pi, play_key, record=True)
    if kept:
        steps = subsample(steps, steps.valid, kept, 0, jax.random.fold_in(play_key, 1))
    observation, valid = jnp.moveaxis(steps.observation, 0, 1), steps.valid.T
    chosen = jax.tree.map(lambda x: x[policy], experts)
    decision = jax.vmap(lambda actor, s: jax.vmap(actor.act)(s))(chosen, observation)
    return Labelled(z_pi, observation, decision, valid)


def original_labels(trajectories: Trajectories, bank: Array) -> Labelled:
    """The experts' own states: the first training episode of each policy and environment, flat [C * E, ...]."""
    flat = jax.tree.map(lambda x: x[:, :, 0].reshape(-1, *x.shape[3:]), trajectories)
    return Labelled(bank.reshape(-1, bank.shape[-1]), flat.observation, flat.decision, flat.valid)


def decoder_loss(
    decoder: PolicyDecoder,
    original: Labelled,
    aggregated: Labelled,
    filled: Array,
    noise: float,
    count: int,
    key: Array,
) -> Array:
    """Squared error of decoded decisions on `count` states: half original, half aggregated."""
    keys = jax.random.split(key)

    def error(data: Labelled, rows: Array, key: Array) -> Array:
        row_key, step_key, noise_key = jax.random.split(key, 3)
        row = jax.random.randint(row_key, (count // 2,), 0, jnp.maximum(rows, 1))
        length = jnp.maximum(jnp.sum(data.valid[row], axis=-1), 1)
        step = jax.random.randint(step_key, (count // 2,), 0, length)
        decoded = jax.vmap(decoder)(data.observation[row, step], add_noise(data.z_pi[row], noise, noise_key))
        return jnp.mean((decoded - data.decision[row, step]) ** 2)

    first = error(original, jnp.asarray(original.z_pi.shape[0]), keys[0])
    second = error(aggregated, filled, keys[1])
    return jnp.where(filled > 0, 0.5 * first + 0.5 * second, first)


def append(store: NamedTuple, rows: NamedTuple, filled: Array):
    """Writes rows behind the first `filled` ones of a store of fixed size."""
    return jax.tree.map(
        lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), filled, 0),
        store,
        rows,
    )


def value_optimiser(options: ValueOptions, updates: int) -> optax.GradientTransformation:
    """Adam; the step size falls along a cosine within each stage, then starts again lower."""
    schedule = optax.cosine_decay_schedule(options.learning_rate, max(updates, 1), 0.02)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
