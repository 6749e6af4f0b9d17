"""Rollouts: an episode that has ended stays as it is, and returns agree with Gymnasium."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.engines import NativeEngine
from pdvf.engines.gym_envs import FamilyEnv
from pdvf.engines.rollout import acting, begin, episode_returns, play
from pdvf.families.builtin.spaceship import Spaceship

ENVIRONMENTS = [1, 4, 9, 13, 18]


def contexts() -> jax.Array:
    angles = np.radians(18.0 * (np.array(ENVIRONMENTS) - 1))
    return jnp.asarray(angles[:, None], jnp.float32)


def policy(observation):
    """Scaled action: up, and back to the middle; operators only, so that NumPy can run it too."""
    return observation * np.array([-0.4, -0.05], np.float32) + np.array([1.0, 0.9], np.float32)


def test_returns_equal_a_python_loop_over_gymnasium():
    returns = episode_returns(NativeEngine(Spaceship()), contexts(), acting(policy), jax.random.key(0))
    expected, lengths = [], []
    for number in ENVIRONMENTS:
        env = gymnasium.make("pdvf/Spaceship-v0", context=number)
        observation, _ = env.reset(seed=0)
        total, done, length = 0.0, False, 0
        while not done:
            action = 3.0 * np.clip(policy(observation), -1.0, 1.0)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, done, length = total + float(reward), terminated or truncated, length + 1
        expected.append(total)
        lengths.append(length)
    assert len(set(lengths)) > 1
    assert max(expected) > 0.01
    np.testing.assert_allclose(returns, expected, rtol=1e-3)


def test_returns_sum_the_rewards_of_every_step(point):
    # Always right: the side times 0.25 + 0.5 + 0.75 + 5 * 1 = 6.5; the horizon of 8 ends it.
    sides = jnp.array([[-1.0], [1.0], [0.5]])
    returns = episode_returns(NativeEngine(point), sides, acting(lambda o: jnp.full_like(o, 9.0)), jax.random.key(0))
    np.testing.assert_allclose(returns, [-6.5, 6.5, 3.25])
    env = FamilyEnv(point, 2)
    env.reset(seed=0)
    assert sum(env.step(np.ones(1, np.float32))[1] for _ in range(8)) == pytest.approx(float(returns[1]))


def test_ended_episodes_stay_as_they_are():
    # In environment 1 the wall is two steps away straight down (see test_spaceship.py), and far straight up.
    engine = NativeEngine(Spaceship())
    two = jnp.zeros((2, 1))
    begin_key, play_key = jax.random.split(jax.random.key(0))
    start = begin(engine, two, begin_key)._replace(memory=jnp.zeros(2))
    directions = jnp.array([[0.0, -1.0], [0.0, 1.0]])
    end, steps = play(engine, two, start, lambda memory, *_: (directions, memory + 1.0), play_key, 6)
    assert steps is not None
    np.testing.assert_array_equal(steps.valid[:, 0], [True, True, False, False, False, False])
    np.testing.assert_array_equal(steps.valid[:, 1], [True] * 6)
    np.testing.assert_array_equal(end.alive, [False, True])
    np.testing.assert_array_equal(end.memory, [2, 6])
    assert float(end.feedback.reward[0]) == float(end.returns[0])
    assert float(end.returns[0]) == pytest.approx(2.513804e-7, rel=1e-4)  # paid once, at the wall
    assert float(end.returns[1]) == 0.0
    last = [2.6045583, 0.0]
    np.testing.assert_allclose(end.observation[0], last, rtol=1e-5)
    np.testing.assert_allclose(steps.next_observation[1:, 0], [last] * 5, rtol=1e-5)
    np.testing.assert_allclose(steps.observation[2:, 0], [last] * 4, rtol=1e-5)
    # Six steps of at least 0.045 * 3 = 0.135 up, and the field of environment 1 pushes up too.
    assert 0.2 + 6 * 0.135 < float(end.observation[1, 1]) < 1.5


def test_going_on_is_the_same_as_playing_through(point):
    engine = NativeEngine(point)
    sides, act = jnp.array([[-1.0], [1.0]]), acting(lambda observation: 0.6 - observation)

    def started(seed: int):
        return begin(engine, sides, jax.random.key(seed))

    through, _ = play(engine, sides, started(0), act, jax.random.key(1), 8)
    half, none = play(engine, sides, started(0), act, jax.random.key(2), 3, record=False)
    end, _ = play(engine, sides, half, act, jax.random.key(3), 5)
    assert none is None
    np.testing.assert_allclose(end.returns, through.returns, rtol=1e-6)
    np.testing.assert_allclose(end.observation, through.observation, rtol=1e-6)


def test_recorded_actions_are_those_carried_out(point):
    engine = NativeEngine(point)
    sides = jnp.ones((1, 1))
    begin_key, play_key = jax.random.split(jax.random.key(0))
    start = begin(engine, sides, begin_key)
    _, steps = play(engine, sides, start, acting(lambda o: jnp.full_like(o, -5.0)), play_key, 3)
    assert steps is not None
    np.testing.assert_array_equal(steps.action[:, 0, 0], [-1.0, -1.0, -1.0])
    np.testing.assert_array_equal(steps.observation[:, 0, 0], [0.0, -0.25, -0.5])
    np.testing.assert_array_equal(steps.next_observation[:, 0, 0], [-0.25, -0.5, -0.75])
