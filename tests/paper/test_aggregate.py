"""Data aggregation for W and for the policy decoder, against numbers worked out by hand or with NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.config import ValueOptions
from pdvf.engines import NativeEngine
from pdvf.paper.aggregate import (
    HELD_OUT,
    Grid,
    Labelled,
    ReturnScale,
    append,
    draw,
    extra_embeddings,
    make_members,
    play_optimal,
    value_error,
    visit_and_label,
)
from pdvf.paper.prober import Scores
from pdvf.paper.quadratic import QuadraticValue
from tiny import make_actors, make_body, numpy_act, relaxed, same_scale

ROWS, ENVIRONMENTS, COUNT = 23, 3, 4000


@pytest.fixture
def checks_off() -> Iterator[None]:
    with relaxed():
        yield


def table() -> Scores:
    """Every number says which row and environment it belongs to: a return is 10 * row + environment."""
    row, environment = np.mgrid[:ROWS, :ENVIRONMENTS].astype(np.float32)
    code = 10 * row + environment
    return Scores(
        z_pi=jnp.asarray(row[:, :1]),
        s0=jnp.asarray(code[..., None]),
        z_d=jnp.asarray(-code[..., None]),
        returns=jnp.asarray(code),
        home=jnp.arange(ROWS) % ENVIRONMENTS,
    )


def drawn(rows: int = ROWS, own: float = 0.0, held_out: bool = False, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the embeddings drawn and the weights of their environments, after a check of what belongs together."""
    scale = ReturnScale(jnp.array(-5.0), jnp.array(45.0), jnp.array(1.0))
    grid = draw(table(), jnp.asarray(rows), scale, own, COUNT, jax.random.key(seed), held_out)
    row = np.asarray(grid.z_pi)[:, 0].astype(int)
    np.testing.assert_allclose(grid.target, (10 * row[:, None] + np.arange(ENVIRONMENTS) + 5) / 50, rtol=1e-5)
    probe = np.asarray(grid.s0)[:, 0].astype(int)  # 10 * row + environment of the probe each environment is seen by
    np.testing.assert_array_equal(probe % 10, np.arange(ENVIRONMENTS))
    assert all((probe // 10 % HELD_OUT == 0) == held_out)
    assert all(probe // 10 < max(rows, 2))
    np.testing.assert_array_equal(np.asarray(grid.z_d)[:, 0], -probe)
    return row, np.asarray(grid.weight)


# Which rows are drawn


def test_held_out_rows_never_train_and_only_they_are_held_out():
    train, held_out = drawn()[0], drawn(held_out=True)[0]
    assert set(train) == {r for r in range(20) if r % HELD_OUT}  # 20 to 22 are no full block
    assert set(held_out) == {0, 5, 10, 15}


@pytest.mark.parametrize("rows", [3, 5, 12])
def test_rows_that_are_not_filled_are_never_drawn(rows):
    for held_out in (False, True):
        row = drawn(rows, held_out=held_out)[0]
        assert row.max() < rows
        assert all((row % HELD_OUT == 0) == held_out)


@pytest.mark.parametrize("held_out", [False, True])
def test_weight_of_an_embeddings_own_environment(held_out):
    for own in (0.0, 0.75, 1.0):
        row, weight = drawn(own=own, held_out=held_out)
        expected = np.where(row[:, None] % ENVIRONMENTS == np.arange(ENVIRONMENTS), own, 0.0) + (1 - own) / ENVIRONMENTS
        np.testing.assert_allclose(weight, expected, rtol=1e-6)


def test_probes_change_from_draw_to_draw():
    scale = ReturnScale(jnp.array(-5.0), jnp.array(45.0), jnp.array(1.0))
    keys = jax.random.split(jax.random.key(0), 50)
    seen = {float(draw(table(), jnp.asarray(ROWS), scale, 0.0, 2, key, False).s0[1, 0]) for key in keys}
    assert len(seen) > 8  # of 16 training rows


def test_other_keys_draw_other_pairs():
    assert np.mean(drawn(seed=0)[0] == drawn(seed=1)[0]) < 0.3


# The error of W


def constant_forms() -> QuadraticValue:
    """Two forms whose L is [[1, 0], [0.5, 0]] and [[0.5, 0], [0, 1]] whatever they are given.

    Their matrices are [[1, 0.5], [0.5, 0.25]] and [[0.25, 0], [0, 1]].
    """
    members = make_members(same_scale(1), 2, 2, ValueOptions(members=2, hidden=4), jax.random.key(0))
    weight, bias = jnp.zeros_like(members.third.weight), jnp.array([[1.0, 9.0, 0.5, 0.0], [0.5, 9.0, 0.0, 1.0]])
    return eqx.tree_at(lambda m: (m.third.weight, m.third.bias), members, (weight, bias))


def test_error_is_asymmetric_by_hand():
    # z:                                 (1, 0)  (0, 1)  (0, 1)  (1, 0)
    # W of the two members:              1, .25  .25, 1  .25, 1  1, .25
    targets = jnp.array([0.5, 0.95, 0.25, 0.9])
    # Weights are 0.1 where W is below the target and the target below 0.9, else 1.
    first = [0.5**2, 0.7**2, 0.0, 0.1**2]
    second = [0.1 * 0.25**2, 0.05**2, 0.75**2, 0.65**2]  # only the first of these is lenient
    options = ValueOptions(members=2, high_return=0.9, underestimation=0.1)
    z_pi = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    # Two environments with the same targets, of which the second weighs three times the first.
    weight = jnp.tile(jnp.array([0.25, 0.75]), (4, 1))
    grid = Grid(z_pi, jnp.ones((2, 1)), jnp.ones((2, 2)), jnp.tile(targets[:, None], (1, 2)), weight)
    expected = np.mean(first) + np.mean(second)
    assert float(value_error(constant_forms(), grid, options)) == pytest.approx(expected, rel=1e-5)


def test_error_against_numpy():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(50, 2))
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    targets, weights = rng.uniform(size=(2, 50, 3))
    options = ValueOptions(members=2, high_return=0.8, underestimation=0.05)
    expected = 0.0
    for matrix in (np.array([[1, 0.5], [0.5, 0.25]]), np.array([[0.25, 0], [0, 1]])):
        for r, value in enumerate(np.einsum("ni,ij,nj->n", z, matrix, z)):
            for target, weight in zip(targets[r], weights[r], strict=True):
                lenient = 0.05 if value < target and target < 0.8 else 1.0
                expected += lenient * weight * (value - target) ** 2 / 50
    grid = Grid(jnp.asarray(z), jnp.ones((3, 1)), jnp.ones((3, 2)), jnp.asarray(targets), jnp.asarray(weights))
    grid = jax.tree.map(lambda x: x.astype(jnp.float32), grid)
    assert float(value_error(constant_forms(), grid, options)) == pytest.approx(expected, rel=1e-4)


def test_a_range_of_returns_for_each_environment():
    returns = jnp.array([[0.0, 100.0], [1.0, 300.0], [4.0, 200.0]])  # the second environment is kind to everybody
    own = ReturnScale.of(returns, ValueOptions(own_range=True, power=2.0))
    np.testing.assert_allclose(own.scale(returns), [[0.0, 0.0], [0.0625, 1.0], [1.0, 0.25]])
    np.testing.assert_allclose(own.at(jnp.array([1, 0])).scale(jnp.array([200.0, 2.0])), [0.25, 0.25])
    np.testing.assert_allclose(own.at(jnp.array(1)).unscale(jnp.array(0.25)), 200.0)
    common = ReturnScale.of(returns, ValueOptions())
    np.testing.assert_allclose(common.at(jnp.array(1)).scale(jnp.array(150.0)), 0.5)


def test_scale_of_returns():
    scale = ReturnScale(jnp.array(-2.0), jnp.array(6.0), jnp.array(1.0))
    np.testing.assert_allclose(scale.scale(jnp.array([-2.0, 0.0, 6.0])), [0.0, 0.25, 1.0])
    np.testing.assert_allclose(scale.unscale(scale.scale(jnp.array([-7.0, 3.0, 9.0]))), [-2.0, 3.0, 9.0], rtol=1e-6)
    cubed = scale._replace(power=jnp.array(3.0))
    np.testing.assert_allclose(cubed.scale(jnp.array([-2.0, 2.0, 6.0])), [0.0, 0.125, 1.0])
    np.testing.assert_allclose(cubed.unscale(cubed.scale(jnp.array([-1.0, 5.0]))), [-1.0, 5.0], rtol=1e-5)


# Stores of fixed size


def test_append_writes_behind_what_is_there_and_nowhere_else():
    def rows(count: int, value: float) -> Labelled:
        full = jnp.full((count, 2), value)
        return Labelled(full, full[..., None], full[..., None], jnp.ones((count, 2), bool))

    store = rows(6, 0.0)._replace(valid=jnp.zeros((6, 2), bool))
    store = append(store, rows(2, 1.0), jnp.asarray(0))
    store = append(store, rows(3, 2.0), jnp.asarray(2))
    for part in store[:3]:
        np.testing.assert_array_equal(part.reshape(6, 2)[:, 0], [1, 1, 2, 2, 2, 0])
    np.testing.assert_array_equal(store.valid[:, 0], [True] * 5 + [False])
    assert store.valid.dtype == bool


# Embeddings


def test_extra_embeddings_are_unit_vectors_between_the_bank_and_everywhere():
    options = ValueOptions(interpolations=300, uniform=200)
    bank = jnp.array([[1.0, 0.0, 0.0], [-0.8, 0.6, 0.0]])  # all in a plane; the second also stands for (0.8, -0.6, 0)
    extra = np.asarray(extra_embeddings(bank, options, jax.random.key(0)))
    assert extra.shape == (500, 3)
    np.testing.assert_allclose(np.linalg.norm(extra, axis=-1), 1.0, atol=1e-5)
    between, uniform = extra[:300], extra[300:]
    assert np.abs(between[:, 2]).max() < 0.3  # noise of 0.05 only
    assert np.abs(uniform[:, 2]).max() > 0.9
    # The arc from (1, 0) to (0.8, -0.6), or its mirror image: never the long way by (0, 1).
    angle = np.arctan2(between[:, 1] * np.sign(between[:, 0]), np.abs(between[:, 0]))
    assert angle.max() < 0.3
    assert angle.min() > -0.65 - 0.3
    assert np.abs(uniform.mean(axis=0)).max() < 0.2


# Play


def test_labels_are_the_experts_decisions_at_visited_states(point, checks_off):
    engine, contexts, count = NativeEngine(point), point.train(0).contexts, 40
    body = make_body(point.observation, point.action, 3, jax.random.key(0))
    experts = make_actors(4, point.observation, point.action, jax.random.key(1))
    bank = jax.random.normal(jax.random.key(2), (4, 2, 3))
    bank = bank / jnp.linalg.norm(bank, axis=-1, keepdims=True)
    visit = jax.jit(lambda *given: visit_and_label(engine, contexts, *given, count, 0, jax.random.key(3)))
    made = visit(body, experts, bank)
    z_pi, observation, decision = (np.asarray(x) for x in made[:3])
    assert observation.shape == decision.shape == (count, point.horizon - point.probe_steps, 1)
    assert np.asarray(made.valid).all()

    flat = np.asarray(bank).reshape(8, 3)
    policy = [int(np.flatnonzero((flat == z).all(axis=-1))[0]) // 2 for z in z_pi]
    assert set(policy) == {0, 1, 2, 3}
    for n in range(count):
        np.testing.assert_allclose(decision[n], numpy_act(experts, policy[n], observation[n]), atol=1e-5)
    others = numpy_act(experts, (policy[0] + 1) % 4, observation[0])
    assert np.abs(decision[0] - others).max() > 0.01  # another expert would have labelled otherwise

    # The states are those of the decoded embedding, not of the expert, after one step of the probe.
    played = np.asarray(jax.vmap(jax.vmap(body.decoder, (0, None)))(made.observation, made.z_pi))
    following = np.clip(observation + np.clip(played, -1, 1) / 4, -1, 1)
    np.testing.assert_allclose(observation[:, 1:], following[:, :-1], atol=1e-5)
    probe = jax.tree.map(lambda x: x[None], body.probe)
    first = np.clip(numpy_act(probe, 0, np.zeros(1)) / 4, -1, 1)
    np.testing.assert_allclose(observation[:, 0], np.tile(first, (count, 1)), atol=1e-5)


def test_optimal_embeddings_are_played_and_scored_at_home(point, checks_off):
    engine, contexts = NativeEngine(point), point.train(0).contexts
    body = make_body(point.observation, point.action, 3, jax.random.key(0))
    options = ValueOptions(members=2, hidden=8, probes=6, jitter=0.5)
    members = make_members(same_scale(1), 3, 3, options, jax.random.key(1))
    play = jax.jit(lambda *given: play_optimal(engine, contexts, *given, options, 0.0, jax.random.key(2)))
    scores, predicted, own = play(body, members)
    assert scores.returns.shape == (12, 2)
    assert predicted.shape == own.shape == (6,)
    np.testing.assert_array_equal(scores.home, [0] * 6 + [1] * 6)
    np.testing.assert_allclose(np.linalg.norm(scores.z_pi, axis=-1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(own, np.asarray(scores.returns)[np.arange(12), scores.home][::2])
    # Without noise the first probe of an environment is like its others: the same optimum, unless jittered.
    z = np.abs(np.asarray(scores.z_pi) @ np.asarray(scores.z_pi)[0])
    np.testing.assert_allclose(z[0:6:2], 1.0, atol=1e-5)
    assert z[1:6:2].min() < 0.999
    # Returns of the two environments are opposite: the same path, side -1 and 1.
    np.testing.assert_allclose(scores.returns[:, 0], -np.asarray(scores.returns)[:, 1], atol=1e-5)
