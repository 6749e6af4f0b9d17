"""W(s0, z_pi, z_d) = z' A z, its closed-form optimum, and a decoder with the same symmetry."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.config import ValueOptions
from pdvf.core.arrays import Scaler
from pdvf.paper.aggregate import make_members, optimal_embeddings
from pdvf.paper.quadratic import QuadraticValue, mean_matrix, optimal_policy_embedding
from tiny import make_decoder, same_scale

O, D, E, HIDDEN, MEMBERS = 2, 3, 4, 8, 3


def make_form(seed: int = 0) -> QuadraticValue:
    scaler = Scaler(jnp.array([2.5, 1.0]), jnp.array([2.0, 0.5]))
    return QuadraticValue(scaler, D, E, HIDDEN, jax.random.key(seed))


@pytest.fixture
def s0() -> jax.Array:
    return jnp.array([1.5, 2.0])


@pytest.fixture
def z_d() -> jax.Array:
    return jnp.array([0.6, -0.8, 0.0])


def units(count: int, size: int, seed: int = 0) -> np.ndarray:
    z = np.random.default_rng(seed).normal(size=(count, size))
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def numpy_lower(form: QuadraticValue, s0: np.ndarray, z_d: np.ndarray) -> np.ndarray:
    """L in double precision, from the weights alone."""
    x = np.concatenate([(s0 - form.observation.centre) / form.observation.width, z_d]).astype(np.float64)
    for layer, activation in (
        (form.first, lambda x: np.maximum(x, 0)),
        (form.second, np.tanh),
        (form.third, lambda x: x),
    ):
        x = activation(np.asarray(layer.weight, np.float64) @ x + np.asarray(layer.bias, np.float64))
    return np.array([[x[E * i + j] if j <= i else 0.0 for j in range(E)] for i in range(E)])


def test_matrix_is_that_of_a_second_implementation(s0, z_d):
    form = make_form()
    lower = numpy_lower(form, np.asarray(s0), np.asarray(z_d))
    np.testing.assert_allclose(form.lower(s0, z_d), lower, atol=1e-6)
    np.testing.assert_allclose(form.matrix(s0, z_d), lower @ lower.T, atol=1e-6)


def test_matrix_is_symmetric_and_positive_semi_definite():
    for seed in range(20):
        keys = jax.random.split(jax.random.key(100 + seed))
        form = make_form(seed)
        matrix = np.asarray(form.matrix(10 * jax.random.normal(keys[0], (O,)), jax.random.normal(keys[1], (D,))))
        np.testing.assert_array_equal(matrix, matrix.T)
        values = np.linalg.eigvalsh(matrix.astype(np.float64))
        assert values.min() >= -1e-6 * values.max()
        assert values.max() > 0


def test_value_is_the_quadratic_form(s0, z_d):
    form = make_form()
    lower = numpy_lower(form, np.asarray(s0), np.asarray(z_d))
    for z in units(20, E):
        expected = z @ (lower @ lower.T) @ z
        assert float(form(s0, jnp.asarray(z, jnp.float32), z_d)) == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_matrix_depends_on_state_and_dynamics(s0, z_d):
    form = make_form()
    matrix = form.matrix(s0, z_d)
    assert float(jnp.max(jnp.abs(form.matrix(s0 + 1.0, z_d) - matrix))) > 1e-3
    assert float(jnp.max(jnp.abs(form.matrix(s0, -z_d) - matrix))) > 1e-3


def test_value_is_even(s0, z_d):
    form, z = make_form(), jnp.asarray(units(1, E)[0], jnp.float32)
    assert float(form(s0, z, z_d)) == float(form(s0, -z, z_d))


def test_mean_of_members_is_the_mean_of_their_matrices(s0, z_d):
    members = make_members(same_scale(O), D, E, ValueOptions(members=MEMBERS, hidden=HIDDEN), jax.random.key(1))
    each = []
    for i in range(MEMBERS):
        lower = numpy_lower(jax.tree.map(lambda x, i=i: x[i], members), np.asarray(s0), np.asarray(z_d))
        each.append(lower @ lower.T)
    assert np.abs(each[0] - each[1]).max() > 1e-3
    np.testing.assert_allclose(mean_matrix(members, s0, z_d), np.mean(each, axis=0), atol=1e-6)


def test_no_random_embedding_is_better_than_the_closed_form(s0, z_d):
    matrix = make_form(7).matrix(s0, z_d)
    z, value = optimal_policy_embedding(matrix)
    assert float(jnp.linalg.norm(z)) == pytest.approx(1.0, abs=1e-5)
    a = np.asarray(matrix, np.float64)
    best = np.asarray(z, np.float64) @ a @ np.asarray(z, np.float64)
    assert float(value) == pytest.approx(best, rel=1e-5)
    others = units(100_000, E)
    values = np.einsum("ni,ij,nj->n", others, a, others)
    assert values.max() <= best * (1 + 1e-5)
    assert values.max() > 0.98 * best  # 100,000 directions in four dimensions come close
    assert np.median(values) < 0.9 * best


def test_closed_form_by_hand():
    angle = 0.3
    z, value = optimal_policy_embedding(
        jnp.array(
            [  # eigenvalues 5 and 2, the first along (cos, sin) of the angle
                [2 + 3 * np.cos(angle) ** 2, 3 * np.cos(angle) * np.sin(angle)],
                [3 * np.cos(angle) * np.sin(angle), 2 + 3 * np.sin(angle) ** 2],
            ],
            jnp.float32,
        )
    )
    assert float(value) == pytest.approx(5.0, rel=1e-5)
    assert abs(float(z @ jnp.array([np.cos(angle), np.sin(angle)], jnp.float32))) == pytest.approx(1.0, abs=1e-5)


def test_optimal_embeddings_of_a_batch_are_those_of_the_mean_matrix(s0, z_d):
    members = make_members(same_scale(O), D, E, ValueOptions(members=MEMBERS, hidden=HIDDEN), jax.random.key(2))
    states, dynamics = jnp.stack([s0, s0 + 1.0, s0]), jnp.stack([z_d, z_d, -z_d])
    z, value = optimal_embeddings(members, states, dynamics)
    assert (z.shape, value.shape) == ((3, E), (3,))
    for i in range(3):
        values, vectors = np.linalg.eigh(np.asarray(mean_matrix(members, states[i], dynamics[i]), np.float64))
        assert float(value[i]) == pytest.approx(values[-1], rel=1e-4)
        assert abs(float(np.asarray(z[i]) @ vectors[:, -1])) == pytest.approx(1.0, abs=1e-4)


def test_decoder_plays_z_and_minus_z_alike():
    decoder = make_decoder(O, E, 2, jax.random.key(3))
    states = jax.random.normal(jax.random.key(4), (50, O))
    z = jnp.asarray(units(50, E), jnp.float32)
    actions = jax.vmap(decoder)(states, z)
    np.testing.assert_array_equal(actions, jax.vmap(decoder)(states, -z))
    assert float(jnp.max(jnp.abs(actions - jax.vmap(decoder)(states, jnp.roll(z, 1, axis=0))))) > 0.01
    flipped = z * jnp.array([-1.0, 1.0, 1.0, 1.0])  # one sign alone is another policy
    assert float(jnp.max(jnp.abs(actions - jax.vmap(decoder)(states, flipped)))) > 0.01
