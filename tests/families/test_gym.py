"""The Gymnasium interface."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pdvf.engines.gym_envs import FamilyEnv, FamilyVectorEnv
from pdvf.families.builtin.spaceship import SpaceshipOptions
from pdvf.families.gym_ids import register

ID = "pdvf/Spaceship-v0"
UP = np.array([0.0, 3.0], np.float32)
DOWN = -UP


def make(context: Any = 1, **kwargs: Any) -> FamilyEnv:
    env = gymnasium.make(ID, context=context, **kwargs).unwrapped
    assert isinstance(env, FamilyEnv)
    return env


def make_many(n: int, context: Any, **kwargs: Any) -> FamilyVectorEnv:
    env = gymnasium.make_vec(ID, n, vectorization_mode="vector_entry_point", context=context, **kwargs).unwrapped
    assert isinstance(env, FamilyVectorEnv)
    return env


def test_import_is_light():
    code = "import sys, pdvf; print([m for m in ('jax', 'matplotlib', 'equinox') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_registering_twice_is_harmless():
    register()
    assert ID in gymnasium.registry


@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_passes_gymnasiums_checker(render_mode: str | None):
    with warnings.catch_warnings():  # forces are in physical units, so not within -1 and 1
        warnings.filterwarnings("ignore", ".*recommend using a symmetric and normalized space.*")
        check_env(make(17, render_mode=render_mode))


def test_family_without_a_picture_passes_the_checker(point):
    check_env(FamilyEnv(point, 1), skip_render_check=True)


def test_step_in_environment_1():
    # The arithmetic is in test_spaceship.py.
    env = make(1)
    observation, info = env.reset(seed=0)
    np.testing.assert_allclose(observation, [2.5, 0.2], rtol=1e-6)
    assert info == {"context": {"angle": 0.0}, "environment": 1}
    observation, reward, terminated, truncated, info = env.step(UP)
    np.testing.assert_allclose(observation, [2.5531488, 0.3392519], rtol=1e-6)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"context": {"angle": 0.0}, "environment": 1}
    assert observation.dtype == np.float32


def test_spaces_are_in_physical_units():
    env = make(1, options=SpaceshipOptions(room=6.0, door=(3.0, 6.0), force=2.0))
    assert env.observation_space == gymnasium.spaces.Box(0.0, 6.0, (2,), np.float32)
    assert env.action_space == gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)


def test_named_context_is_the_numbered_one():
    # Environment 17 is at 16 * 18 = 288 degrees.
    numbered, named = make(17), make({"angle": math.radians(288)})
    assert numbered.reset(seed=0)[1]["environment"] == 17
    assert named.reset(seed=0)[1]["environment"] is None
    one, other = numbered.step(UP), named.step(UP)
    np.testing.assert_allclose(one[0], other[0], rtol=1e-6)
    assert one[4]["context"]["angle"] == pytest.approx(math.radians(288), rel=1e-6)
    assert other[4]["context"]["angle"] == pytest.approx(math.radians(288), rel=1e-6)


def test_numpy_integers_are_environment_numbers():
    assert make(np.int64(2)).reset()[1]["environment"] == 2


def test_split_seed_draws_the_contexts():
    options = SpaceshipOptions(sampling="interval")
    angles = [
        make(3, options=options, split_seed=s).reset()[1]["context"]["angle"] / math.radians(18) for s in (0, 0, 1)
    ]
    assert angles[0] == angles[1] != angles[2]
    assert all(2 <= angle < 3 for angle in angles)


BAD_NUMBERS = [0, 21, -1, "x", 1.0, True, None, [1]]
BAD_NAMES = [{}, {"angel": 1}, {"angle": "x"}, {"angle": math.nan}, {"angle": 1.0, "mass": 2.0}]


@pytest.mark.parametrize("context", [*BAD_NUMBERS, *BAD_NAMES])
def test_bad_context(context: Any):
    with pytest.raises(ValueError, match=r"context is .* from 1 to 20.*\['angle'\].*pass for example") as error:
        make(context)
    assert repr(context) in str(error.value)
    with pytest.raises(ValueError, match="context is"):
        make_many(2, [1, context])


def test_stepping_after_the_end_needs_a_reset():
    env = make(1)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(UP)
    env.reset(seed=0)
    assert not env.step(DOWN)[2]
    assert env.step(DOWN)[2]  # through the lower wall, see test_spaceship.py
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(UP)
    env.reset()
    assert not env.step(UP)[2]


@pytest.mark.parametrize("action", [[0.0], [[0.0, 0.0]], 1.0, [0.0, 0.0, 0.0]])
def test_action_of_the_wrong_shape(action: Any):
    env = make(1)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"the action has shape .* expected \(2,\)"):
        env.step(np.array(action))
    vector = make_many(3, 1)
    vector.reset(seed=0)
    with pytest.raises(ValueError, match=r"the action has shape .* expected \(3, 2\)"):
        vector.step(np.array(action))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_action_that_is_not_finite(bad: float):
    env = make(1)
    before, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match="expected finite numbers"):
        env.step(np.array([0.0, bad], np.float32))
    after = env.step(UP)[0]  # the bad action has left no trace
    np.testing.assert_allclose(after - before, [0.0531488, 0.1392519], rtol=1e-5)


def test_reset_takes_no_options():
    with pytest.raises(ValueError, match="takes none"):
        make(1).reset(options={"context": 2})
    with pytest.raises(ValueError, match="takes none"):
        make_many(2, 1).reset(options={"reset_mask": np.ones(2, bool)})


def test_spaceship_ends_at_its_horizon_by_termination():
    # The task itself ends there and pays, so there is nothing to bootstrap from.
    env = make(1, options=SpaceshipOptions(horizon=3))
    env.reset(seed=0)
    assert [env.step(UP)[2:4] for _ in range(3)] == [(False, False), (False, False), (True, False)]


def test_truncated_at_the_horizon(point):
    env = FamilyEnv(point, 2)
    env.reset(seed=0)
    steps = [env.step(np.ones(1, np.float32)) for _ in range(8)]
    assert [s[1] for s in steps] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [s[2] for s in steps] == [False] * 8
    assert [s[3] for s in steps] == [False] * 7 + [True]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.ones(1, np.float32))


def test_picture_shows_the_path():
    env = make(17, render_mode="rgb_array")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.render()
    env.reset(seed=0)
    first = env.render()
    for _ in range(10):
        env.step(UP)
    later = env.render()
    assert first is not None
    assert later is not None
    assert first.shape == later.shape == (320, 320, 3)
    assert first.dtype == np.uint8
    dark = [np.sum(np.all(picture < 60, axis=-1)[5:-5, 5:-5]) for picture in (first, later)]
    assert dark[1] > dark[0] + 50  # the path and the ship are black
    assert np.std(first) > 5


def test_picture_that_nobody_can_draw(point):
    with pytest.raises(ValueError, match="render_mode is 'rgb_array'"):
        FamilyEnv(point, 1, render_mode="rgb_array")
    env = make(1)
    env.reset()
    assert env.render() is None


def test_vector_env_declares_what_it_does():
    env = make_many(3, [1, 17, {"angle": 1.0}])
    assert env.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert env.num_envs == 3
    assert env.action_space.shape == (3, 2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros((3, 2), np.float32))
    observations, info = env.reset(seed=0)
    assert observations.shape == (3, 2)
    assert observations.dtype == np.float32
    np.testing.assert_allclose(info["context"]["angle"], [0.0, math.radians(288), 1.0], rtol=1e-6)
    np.testing.assert_array_equal(info["environment"], [1, 17, 0])
    np.testing.assert_array_equal(info["_environment"], [True, True, False])


def test_vector_env_needs_a_context_each():
    with pytest.raises(ValueError, match="context has 2 entries, expected num_envs = 3"):
        make_many(3, [1, 2])
    np.testing.assert_array_equal(make_many(3, 4).reset()[1]["environment"], [4, 4, 4])


@pytest.mark.parametrize("horizon", [50, 6])
def test_vector_env_agrees_with_gymnasiums_own(horizon: int):
    """Episodes end at different times, so the automatic restarts are compared too."""
    contexts, options = [1, 6, 11, 17], SpaceshipOptions(horizon=horizon)
    ours = make_many(4, contexts, options=options)
    theirs = SyncVectorEnv([lambda c=c: gymnasium.make(ID, context=c, options=options) for c in contexts])
    assert theirs.metadata["autoreset_mode"] == ours.metadata["autoreset_mode"]
    np.testing.assert_array_equal(ours.reset(seed=5)[0], theirs.reset(seed=5)[0])
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(40):
        actions = rng.uniform(-3, 3, (4, 2)).astype(np.float32)
        one, other = ours.step(actions), theirs.step(actions)
        for mine, expected in zip(one[:4], other[:4], strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-9)
        np.testing.assert_array_equal(one[4]["environment"], other[4]["environment"])
        np.testing.assert_array_equal(one[4]["context"]["angle"], other[4]["context"]["angle"])
        ends += np.sum(one[2] | one[3])
    assert ends >= 4


def test_vector_env_truncates_and_restarts(point):
    env = FamilyVectorEnv(point, 2, [1, 2])
    env.reset(seed=0)
    right = np.ones((2, 1), np.float32)
    for _ in range(7):
        assert not np.any(env.step(right)[3])
    observations, rewards, terminated, truncated, _ = env.step(right)
    np.testing.assert_array_equal(rewards, [-1.0, 1.0])  # the first environment wants to be on the left
    assert np.all(truncated)
    assert not np.any(terminated)
    np.testing.assert_array_equal(observations, [[1.0], [1.0]])  # the last observation of the old episode
    observations, rewards, terminated, truncated, _ = env.step(right)
    np.testing.assert_array_equal(observations, [[0.0], [0.0]])  # the first of the new one; no move, no reward
    np.testing.assert_array_equal(rewards, [0.0, 0.0])
    assert not np.any(truncated | terminated)
    np.testing.assert_array_equal(env.step(right)[0], [[0.25], [0.25]])


def test_seeds_reach_the_family(point):
    """A random start is the same for the same seed, and another one in the next episode."""

    class Noisy(type(point)):
        def initial_state(self, key, context):
            return jax.random.uniform(key, (1,), jnp.float32, -1.0, 1.0)

    env, vector = FamilyEnv(Noisy(), 1), FamilyVectorEnv(Noisy(), 3, 1)
    first, second = env.reset(seed=4)[0], env.reset()[0]
    assert first != second
    np.testing.assert_array_equal(env.reset(seed=4)[0], first)
    starts = vector.reset(seed=3)[0][:, 0]
    assert len(set(starts.tolist())) == 3
    assert starts[1] == first
    np.testing.assert_array_equal(vector.reset(seed=[3, 4, 5])[0][:, 0], starts)
    assert vector.reset()[0][1] == second
    with pytest.raises(ValueError, match="seed has 2 entries"):
        vector.reset(seed=[1, 2])
