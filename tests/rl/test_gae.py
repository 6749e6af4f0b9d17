"""Generalised advantage estimation against hand-computed numbers and a plain loop."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.rl.gae import advantages


def run(rewards, values, following, terminated, stopped, discount: float, gae_lambda: float) -> np.ndarray:
    rewards, values, following, terminated, stopped = (
        jnp.asarray(x, jnp.float32) for x in (rewards, values, following, terminated, stopped)
    )
    return np.asarray(advantages(rewards, values, following, terminated, stopped, discount, gae_lambda))


def test_three_steps_by_hand():
    # discount 0.5, lambda 0.5, values 1, 2, 3; the value after the last step is 4; nothing stops.
    #   delta = 1 + 0.5 * 2 - 1 = 1,  0 + 0.5 * 3 - 2 = -0.5,  2 + 0.5 * 4 - 3 = 1
    #   A_2 = 1,  A_1 = -0.5 + 0.25 * 1 = -0.25,  A_0 = 1 + 0.25 * -0.25 = 0.9375
    never = np.zeros((3, 1))
    result = run([[1], [0], [2]], [[1], [2], [3]], [[2], [3], [4]], never, never, 0.5, 0.5)
    np.testing.assert_allclose(result[:, 0], [0.9375, -0.25, 1.0], rtol=1e-6)


def test_the_two_ways_to_stop_by_hand():
    # As above, but the middle step ends the episode; the value after it is 10.
    # Terminated: delta_1 = 0 - 2 = -2 = A_1, A_0 = 1 + 0.25 * -2 = 0.5.
    # Out of time: delta_1 = 0 + 0.5 * 10 - 2 = 3 = A_1, A_0 = 1 + 0.25 * 3 = 1.75.
    # Either way the last step, which belongs to the next episode, has A_2 = 1, and nothing of it reaches A_1.
    both = np.array([[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]])
    values = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    following = np.array([[2.0, 2.0], [10.0, 10.0], [4.0, 4.0]])
    terminated = np.array([[0, 0], [1, 0], [0, 0]])
    stopped = np.array([[0, 0], [1, 1], [0, 0]])
    result = run(both, values, following, terminated, stopped, 0.5, 0.5)
    np.testing.assert_allclose(result, [[0.5, 1.75], [-2.0, 3.0], [1.0, 1.0]], rtol=1e-6)


@pytest.mark.parametrize(("discount", "gae_lambda"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0)])
def test_against_sums_over_each_episode(discount: float, gae_lambda: float):
    """The definition, sum over k of (discount * lambda)^k delta, term by term and episode by episode."""
    rng = np.random.default_rng(0)
    T, n = 37, 5
    rewards, values, following = rng.normal(size=(3, T, n))
    terminated = rng.random((T, n)) < 0.1
    stopped = terminated | (rng.random((T, n)) < 0.1)
    assert np.any(stopped & ~terminated)
    assert np.any(terminated)
    expected = np.zeros((T, n))
    for i in range(n):
        for t in range(T):
            factor = 1.0
            for k in range(t, T):
                after = 0.0 if terminated[k, i] else following[k, i]
                expected[t, i] += factor * (rewards[k, i] + discount * after - values[k, i])
                factor *= discount * gae_lambda
                if stopped[k, i]:
                    break
    result = run(rewards, values, following, terminated, stopped, discount, gae_lambda)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
