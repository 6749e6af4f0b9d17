"""Supervised learning with early stopping: one loop for both autoencoders and for the value function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from pdvf.core.arrays import Array

Model = TypeVar("Model")
LOOKS = 16
"""Batches of held-out data behind one held-out loss: with a single small one, luck decides which model is the best."""


class Fit(NamedTuple, Generic[Model]):
    """A model in training, with the best one so far by held-out loss."""

    model: Model
    optimiser: optax.OptState
    best: Model
    best_loss: Array
    key: Array


def start(model: Any, optimiser: optax.GradientTransformation, key: Array) -> Fit[Any]:
    """Training that has not begun."""
    return Fit(model, optimiser.init(model), model, jnp.full((), jnp.inf), key)


def advance(
    fit: Fit[Model],
    optimiser: optax.GradientTransformation,
    loss: Callable[[Model, Array], Array],
    held_out_loss: Callable[[Model, Array], Array],
    updates: int,
) -> tuple[Fit[Model], dict[str, Array]]:
    """Some gradient steps, then a look at held-out data. Both losses draw a batch of their own with each key."""
    key, step_key, look_key = jax.random.split(fit.key, 3)

    def step(carry: tuple[Any, Any], key: Array):
        model, state = carry
        value, gradient = jax.value_and_grad(loss)(model, key)
        change, state = optimiser.update(gradient, state, model)
        return (optax.apply_updates(model, change), state), value

    carry: Any
    carry, losses = jax.lax.scan(step, (fit.model, fit.optimiser), jax.random.split(step_key, updates))
    model, state = carry
    held_out = jnp.mean(jax.lax.map(lambda k: held_out_loss(model, k), jax.random.split(look_key, LOOKS)))
    better = held_out < fit.best_loss
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), model, fit.best)
    best_loss = jnp.minimum(held_out, fit.best_loss)
    metrics = {"loss": jnp.mean(losses), "held_out_loss": held_out}
    return Fit(model, state, best, best_loss, key), metrics


def cosine_adam(learning_rate: float, updates: int) -> optax.GradientTransformation:
    """Adam whose step size rises for a twentieth of the updates and falls to 0 along a cosine."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, max(updates // 20, 1), max(updates, 2))
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
