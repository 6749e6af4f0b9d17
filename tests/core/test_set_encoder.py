"""The set transformer: what must not change its embedding, and what must."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.core.networks import FeedForward, SetEncoder, unit

FEATURES, SIZE = 3, 6


@pytest.fixture(scope="module")
def encoder() -> SetEncoder:
    return SetEncoder(FEATURES, model=8, embedding=4, dropout=0.5, key=jax.random.key(0))


def elements(seed: int = 1) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (SIZE, FEATURES))


ALL = jnp.ones(SIZE, bool)
FIRST_FOUR = jnp.arange(SIZE) < 4


@eqx.filter_jit
def encode(encoder: SetEncoder, x: jax.Array, valid: jax.Array, key: jax.Array | None = None) -> jax.Array:
    return encoder(x, valid, key)


def test_order_does_not_matter(encoder: SetEncoder):
    order = np.array([3, 1, 5, 0, 2, 4])
    x = elements()
    np.testing.assert_allclose(encode(encoder, x, ALL), encode(encoder, x[order], ALL), atol=1e-6)
    np.testing.assert_allclose(encode(encoder, x, FIRST_FOUR), encode(encoder, x[order], FIRST_FOUR[order]), atol=1e-6)


def test_elements_matter(encoder: SetEncoder):
    x = elements()
    assert np.max(np.abs(encode(encoder, x, ALL) - encode(encoder, elements(2), ALL))) > 0.01
    assert np.max(np.abs(encode(encoder, x, ALL) - encode(encoder, x, FIRST_FOUR))) > 1e-3
    moved = x.at[0, 0].add(1.0)
    assert np.max(np.abs(encode(encoder, x, FIRST_FOUR) - encode(encoder, moved, FIRST_FOUR))) > 1e-3


@pytest.mark.parametrize("garbage", [0.0, -7.0, 1e4])
def test_padding_does_not_matter(encoder: SetEncoder, garbage: float):
    x = elements()
    expected = encode(encoder, x[:4], jnp.ones(4, bool))
    np.testing.assert_allclose(encode(encoder, x, FIRST_FOUR), expected, atol=1e-6)
    np.testing.assert_allclose(encode(encoder, x.at[4:].set(garbage), FIRST_FOUR), expected, atol=1e-6)


def test_embedding_has_length_one(encoder: SetEncoder):
    embeddings = jax.vmap(encode, in_axes=(None, 0, None))(
        encoder, jnp.stack([scale * elements() for scale in (1e-3, 1.0, 100.0)]), ALL
    )
    assert embeddings.shape == (3, 4)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(unit(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)
    assert np.all(np.isfinite(unit(jnp.zeros(2))))


def test_an_empty_set_is_finite(encoder: SetEncoder):
    assert np.all(np.isfinite(encode(encoder, elements(), jnp.zeros(SIZE, bool))))


def test_no_gradient_reaches_padding(encoder: SetEncoder):
    direction = jnp.array([1.0, -2.0, 0.5, 3.0])
    gradient = jax.grad(lambda x: jnp.vdot(direction, encode(encoder, x, FIRST_FOUR)))(elements())
    np.testing.assert_array_equal(gradient[4:], np.zeros((2, FEATURES)))
    assert np.all(np.max(np.abs(gradient[:4]), axis=-1) > 1e-6)


def test_dropout_acts_only_with_a_key(encoder: SetEncoder):
    x = elements()
    np.testing.assert_array_equal(encode(encoder, x, ALL), encode(encoder, x, ALL))
    one, same, other = (np.asarray(encode(encoder, x, ALL, jax.random.key(k))) for k in (5, 5, 6))
    np.testing.assert_array_equal(one, same)
    assert np.max(np.abs(one - other)) > 1e-3
    assert np.max(np.abs(one - encode(encoder, x, ALL))) > 1e-3


def test_no_dropout_when_its_rate_is_zero():
    encoder = SetEncoder(FEATURES, model=8, embedding=4, dropout=0.0, key=jax.random.key(0))
    np.testing.assert_array_equal(encode(encoder, elements(), ALL), encode(encoder, elements(), ALL, jax.random.key(5)))


def test_attention_mixes_elements(encoder: SetEncoder):
    """With queries of 0 every element attends to all alike, which gives another embedding."""
    x = 3 * elements()
    blunt = eqx.tree_at(lambda e: e.query, encoder, jax.tree.map(jnp.zeros_like, encoder.query))
    assert np.max(np.abs(encode(encoder, x, ALL) - encode(blunt, x, ALL))) > 1e-4


def test_feed_forward_by_hand():
    # With the weights below and x = 2: relu([1, -1] * 2) = [2, 0], then 3 * 2 + 5 * 0 + 1 = 7. With x = -2:
    # [0, 2], then 3 * 0 + 5 * 2 + 1 = 11.
    network = eqx.tree_at(
        lambda f: [array for layer in f.layers for array in (layer.weight, layer.bias)],
        FeedForward((1, 2, 1), jax.random.key(0)),
        [jnp.array([[1.0], [-1.0]]), jnp.zeros(2), jnp.array([[3.0, 5.0]]), jnp.array([1.0])],
    )
    assert network(jnp.array([2.0])).tolist() == [7.0]
    assert network(jnp.array([-2.0])).tolist() == [11.0]
