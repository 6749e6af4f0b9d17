"""Set transformer and feed-forward network of appendix A.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array


class FeedForward(eqx.Module):
    """Linear layers with a function between them."""

    layers: tuple[eqx.nn.Linear, ...]
    between: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(self, sizes: tuple[int, ...], key: Array, between: Callable[[Array], Array] = jax.nn.relu):
        self.between = between
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = zip(sizes[:-1], sizes[1:], keys, strict=True)
        self.layers = tuple(eqx.nn.Linear(i, o, key=k) for i, o, k in pairs)

    def __call__(self, x: Array) -> Array:
        """From [inputs] to [outputs]."""
        for layer in self.layers[:-1]:
            x = self.between(layer(x))
        return self.layers[-1](x)


class SetEncoder(eqx.Module):
    """From a set of elements to a unit vector; the order of the set does not matter.

    One transformer layer without positional encoding: single-head self-attention and a feed-forward network, each
    with a residual connection, layer normalisation and dropout; the mean over the set; a linear layer; unit norm.
    """

    element: eqx.nn.Linear
    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    output: eqx.nn.Linear
    feed_forward: FeedForward
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    embedding: eqx.nn.Linear
    dropout: float = eqx.field(static=True)

    def __init__(self, inputs: int, model: int, embedding: int, dropout: float, key: Array):
        keys = jax.random.split(key, 7)
        self.element = eqx.nn.Linear(inputs, model, key=keys[0])
        self.query, self.key, self.value, self.output = (eqx.nn.Linear(model, model, key=k) for k in keys[1:5])
        self.feed_forward = FeedForward((model, model, model), keys[5])
        self.norms = (eqx.nn.LayerNorm(model), eqx.nn.LayerNorm(model))
        self.embedding = eqx.nn.Linear(model, embedding, key=keys[6])
        self.dropout = dropout

    def __call__(self, elements: Array, valid: Array, key: Array | None = None) -> Array:
        """Embedding [e] of elements [m, f] where valid [m]; dropout acts only when a key is given."""
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        x = jax.vmap(self.element)(jnp.where(valid[:, None], elements, 0.0))  # padding may hold anything
        q, k, v = (jax.vmap(linear)(x) for linear in (self.query, self.key, self.value))
        scores = q @ k.T / jnp.sqrt(q.shape[-1])
        weights = jax.nn.softmax(jnp.where(valid[None, :], scores, -1e9), axis=-1)
        x = self._sublayer(0, x, jax.vmap(self.output)(weights @ v), keys[0])
        x = self._sublayer(1, x, jax.vmap(self.feed_forward)(x), keys[1])
        counted = valid[:, None].astype(x.dtype)
        pooled = jnp.sum(x * counted, axis=0) / jnp.maximum(jnp.sum(counted), 1.0)
        return unit(self.embedding(pooled))

    def _sublayer(self, index: int, x: Array, change: Array, key: Array | None) -> Array:
        x = jax.vmap(self.norms[index])(x + change)
        return eqx.nn.Dropout(self.dropout)(x, key=key, inference=key is None)


def unit(x: Array) -> Array:
    """Scales vectors [..., e] to length 1."""
    return x * jax.lax.rsqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-12)


def vmap_init(make: Callable[..., Any], keys: Array, *data: Any) -> Any:
    """What `make(key, *data)` makes of each of the keys [n], as one pytree [n, ...].

    The program runs once, so it is not worth optimising: that would take longer than everything else about it. Data
    that `make` needs are passed on: an array that it only refers to would become a part of the program.
    """

    def many(keys: Array, *data: Any) -> Any:
        return jax.vmap(lambda key: make(key, *data))(keys)

    return jax.jit(many, compiler_options={"xla_backend_optimization_level": 0})(keys, *data)
