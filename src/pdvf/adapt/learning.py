"""Learns codes, effect and noise from paired steps of a policy in the training environments."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import stats

from pdvf.adapt.belief import Belief, along
from pdvf.adapt.model import DynamicsModel, Rows, effects, loss, normalise, rescale
from pdvf.adapt.tasks import BeliefTasks
from pdvf.core.arrays import Array, Scaler
from pdvf.engines.base import settable, state_vector
from pdvf.engines.rollout import where

EXPLORATION = 0.3
"""Least standard deviation of the noise on actions while steps are gathered, in units of the largest action."""
HELD_OUT = 8
"""One in so many streams of episodes is not learned from."""
FALSE_ALARMS = 0.01
"""Share of episodes in training environments that may be called unlike training."""
QUANTILES = stats.t.ppf(1 - FALSE_ALARMS, np.arange(1, 129))
"""Of Student's distribution with 1, 2, ... degrees of freedom."""
SLACK = 1.25
"""Factor on what these episodes say: the policy learns on, and meets what was not in them."""
JUDGED = 4096
"""Held-out steps from which the size of codes is chosen."""


def streams_for(rows: int, horizon: int) -> int:
    """Streams of episodes that make about so many steps when each is as long as an episode."""
    return HELD_OUT * max(rows // horizon // HELD_OUT, 1)


def gather(tasks: BeliefTasks, actor: Any, streams: int, key: Array) -> Rows:
    """Steps [T, n, ...] of noisy episodes in training environments; T is the horizon.

    Where the engine can be put into any state, every step is made a second time in another training environment.
    """
    engine, family = tasks.inner, tasks.inner.family
    paired = settable(engine)
    count, box = tasks.contexts.shape[0], Scaler.from_box(family.action)
    reset_key, play_key = jax.random.split(key)
    nothing = jnp.zeros((streams, 1))
    state, observation = tasks.reset(jax.random.split(reset_key, streams), nothing)
    std = jnp.maximum(jnp.exp(actor.log_std), EXPLORATION)

    def step(carry: Any, key: Array) -> tuple[Any, Rows]:
        state, observation, first = carry
        noise_key, other_key, reset_key = jax.random.split(key, 3)
        mean = jax.vmap(actor)(observation)
        action = jnp.clip(mean + std * jax.random.normal(noise_key, mean.shape), -1.0, 1.0)
        following, outcome = tasks.step(nothing, state, box.unscale(action))
        other, difference, beside = state.environment, jnp.zeros((streams, 1)), following.observation
        if paired:
            other = jax.random.randint(other_key, (streams,), 0, count)
            there, seen = engine.step(tasks.contexts[other], state.inner, box.unscale(action))
            beside = seen.observation
            difference = state_vector(engine, there) - state_vector(engine, following.inner)
        row = Rows(
            state.observation,
            action,
            following.observation,
            state.environment,
            first,
            outcome.terminated,
            other,
            difference,
            beside,
        )
        again, fresh = tasks.reset(jax.random.split(reset_key, streams), nothing)
        ended = outcome.terminated
        carry = jax.tree.map(lambda x, y: where(ended, x, y), (again, fresh), (following, outcome.observation))
        return (*carry, ended), row

    carry = (state, observation, jnp.ones(streams, bool))
    return jax.lax.scan(step, carry, jax.random.split(play_key, family.horizon))[1]


def fit(model: DynamicsModel, rows: Rows, paired: bool, updates: int, batch: int, rate: float, key: Array):
    """The model after some gradient steps on streams that are not held out, and the mean loss."""
    kept = jax.tree.map(lambda x: _flat(x[:, _held_out(rows) :]), rows)
    model = rescale(model, rows)
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, updates // 20, updates)),
    )

    def step(carry: Any, key: Array):
        model, state = carry
        chosen = jax.random.randint(key, (batch,), 0, kept.first.shape[0])
        value, gradient = jax.value_and_grad(loss)(model, jax.tree.map(lambda x: x[chosen], kept), paired)
        change, state = optimiser.update(gradient, state)
        return (eqx.apply_updates(model, change), state), value

    (model, _), losses = jax.lax.scan(
        step, (model, optimiser.init(eqx.filter(model, eqx.is_array))), jax.random.split(key, updates)
    )
    return model, jnp.mean(losses[-(updates // 10) :])


def _held_out(rows: Rows) -> int:
    return rows.first.shape[1] // HELD_OUT


def _flat(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])


def held_out(rows: Rows) -> Rows:
    """The streams [T, n, ...] that `fit` does not see."""
    return jax.tree.map(lambda x: x[:, : _held_out(rows)], rows)


def held_out_effects(model: DynamicsModel, rows: Rows, paired: bool):
    """Effects on `JUDGED` held-out steps, for `normalise`."""
    steps = jax.tree.map(_flat, held_out(rows))
    chosen = jnp.linspace(0, steps.first.shape[0] - 1, JUDGED).astype(jnp.int32)
    return effects(model, jax.tree.map(lambda x: x[chosen], steps), paired)


class Quality(NamedTuple):
    """How far a model may be trusted, on held-out steps of training environments."""

    rank: Array  # [] numbers of a code
    relative_error: Array  # [] median relative error of the effect


def renormalise(models: DynamicsModel, seen: Any) -> tuple[DynamicsModel, Quality]:
    """Models [S, ...] whose codes are scaled to the unit ball; on the host, one after the other."""
    frames, errors = [], []
    for s in range(models.raw_codes.shape[0]):
        own = jax.tree.map(lambda x, s=s: np.asarray(x[s], np.float64 if x.dtype == jnp.float32 else None), seen)
        frame = normalise(np.asarray(models.raw_codes[s]), own, np.asarray(models.codes[s]))
        predicted = own.predicted(own.effect @ frame.frame, frame.codes)
        size = np.linalg.norm(own.target, axis=-1)
        moved = size > 1e-6
        wrong = np.linalg.norm(predicted - own.target, axis=-1)[moved] / size[moved]
        frames.append(frame)
        errors.append(np.median(wrong) if moved.any() else 1.0)
    codes, origin, turned, rank = (jnp.asarray(np.stack(x), jnp.float32) for x in zip(*frames, strict=True))
    models = eqx.tree_at(lambda m: (m.codes, m.origin, m.frame), models, (codes, origin, turned))
    return models, Quality(rank, jnp.asarray(np.array(errors, np.float32)))


def calibrate(model: DynamicsModel, rows: Rows) -> tuple[DynamicsModel, Array]:
    """A model whose belief is as sure as it should be in held-out streams, and the error of its mean.

    The same streams tell how unlike training an episode may look that is not.
    """
    seen = held_out(rows)

    def follow(model: DynamicsModel) -> Belief:
        """Beliefs [n, T, ...]."""
        steps = seen.observation, seen.action, seen.next_observation, seen.first
        return jax.vmap(along, in_axes=(None, 1, 1, 1, 1))(model, *steps)

    beliefs = follow(eqx.tree_at(lambda m: m.temperature, model, jnp.ones(())))
    codes = model.codes[seen.environment.T]  # [n, T, K]
    means = jax.vmap(jax.vmap(lambda b: b.mean))(beliefs)
    apart = codes - means
    distance = jnp.einsum("ntk,ntkl,ntl->nt", apart, beliefs.precision, apart)
    rank = jnp.maximum(jnp.sum(jnp.any(model.codes != 0.0, axis=0)), 1)
    acted = ~seen.last.T  # nobody acts by a belief that has taken in the end of the task
    temperature = jnp.clip(jnp.mean(distance, where=acted) / rank, 1.0, 1e4)
    error = jnp.mean(jnp.sum(apart[:, -1] ** 2, -1)) / jnp.mean(jnp.sum(codes[:, -1] ** 2, -1))
    model = eqx.tree_at(lambda m: m.temperature, model, temperature)
    ends = acted & jnp.roll(~acted, -1, axis=1).at[:, -1].set(True)
    threshold = jnp.clip(SLACK * prediction_limit(follow(model).novelty, ends), 1e-3, 1e3)
    return eqx.tree_at(lambda m: m.novelty_threshold, model, threshold), error


def prediction_limit(values: Array, chosen: Array) -> Array:
    """What another value goes beyond with probability `FALSE_ALARMS` [], if logarithms are normal.

    The few chosen values [...] that a small training has say little about a quantile: an eighth of all others is
    beyond the largest of seven. With fewer than two there is no limit.
    """
    logs, count = jnp.log(values + 1e-12), jnp.sum(chosen)
    mean = jnp.mean(logs, where=chosen)
    deviation = jnp.std(logs, where=chosen, ddof=1) * jnp.sqrt(1 + 1 / count)
    quantile = jnp.asarray(QUANTILES, jnp.float32)[jnp.clip(count - 2, 0, len(QUANTILES) - 1)]
    return jnp.where(count > 1, jnp.exp(mean + quantile * deviation), jnp.inf)
