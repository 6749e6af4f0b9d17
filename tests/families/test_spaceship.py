"""Spaceship against numbers computed by hand, with dt^2 / 2 = 0.045 and k * radius = 7.5."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.families import NativeFamily
from pdvf.families.builtin.spaceship import Spaceship, SpaceshipOptions, SpaceshipState


def place(x: float, y: float, time: int = 0) -> SpaceshipState:
    return SpaceshipState(jnp.array([x, y], jnp.float32), jnp.array(time, jnp.int32))


def step(state: SpaceshipState, angle: float, action: tuple[float, float], family: Spaceship | None = None):
    """Position, reward and end after a step."""
    context, force = jnp.array([angle], jnp.float32), jnp.array(action, jnp.float32)
    state, reward, ended = (family or Spaceship()).transition(context, state, force)
    return np.asarray(state.position), float(reward), bool(ended)


def test_is_a_native_family():
    assert isinstance(Spaceship(), NativeFamily)


def test_step_in_environment_1():
    # Angle 0: charges (1.5, 0), so only the one at (0, 0) acts. From the start (2.5, 0.2):
    #   distance^2 = 6.25 + 0.04 = 6.29, cubed distance = 6.29 * 2.5079872 = 15.775240, plus 0.1 = 15.875240
    #   force = 5 * 1.5 / 15.875240 * (2.5, 0.2) = 0.4724338 * (2.5, 0.2) = (1.1810845, 0.0944868)
    #   with the action (0, 3): step = 0.045 * (1.1810845, 3.0944868) = (0.0531488, 0.1392519)
    start = Spaceship().initial_state(jnp.zeros(0), jnp.zeros(1))
    np.testing.assert_allclose(start.position, [2.5, 0.2], rtol=1e-6)
    position, reward, ended = step(start, 0.0, (0.0, 3.0))
    np.testing.assert_allclose(position, [2.5531488, 0.3392519], rtol=1e-6)
    assert reward == 0.0
    assert not ended


def test_step_in_environment_6():
    # Angle pi / 2: charges (0, 1.5), so only the one at (0, 5) acts. From the start, away = (2.5, -4.8):
    #   distance^2 = 6.25 + 23.04 = 29.29, cubed = 29.29 * 5.4120237 = 158.518174, plus 0.1 = 158.618174
    #   force = 7.5 / 158.618174 * (2.5, -4.8) = 0.04728336 * (2.5, -4.8) = (0.1182084, -0.2269601)
    #   with no action: step = 0.045 * force = (0.00531938, -0.01021321)
    position, _, ended = step(place(2.5, 0.2), math.pi / 2, (0.0, 0.0))
    np.testing.assert_allclose(position, [2.5053194, 0.1897868], rtol=1e-6)
    assert not ended


def test_opposite_angles_push_oppositely():
    family = Spaceship()
    rng = np.random.default_rng(0)
    for angle, x, y in rng.uniform([0, 0.5, 0.5], [6, 4.5, 4.5], (10, 3)):
        one, other = (
            np.asarray(family.field(jnp.array([a], jnp.float32), jnp.array([x, y], jnp.float32)))
            for a in (angle, angle + math.pi)
        )
        assert np.linalg.norm(one) > 0.01
        np.testing.assert_allclose(one, -other, rtol=1e-4, atol=1e-5)


def test_actions_are_clipped_per_component():
    # Beyond the bound of 3 nothing changes; the difference between +3 and -3 is 0.045 * 6 = 0.27.
    far, bound, back = (step(place(2.5, 2.5), 0.3, (fx, 0.0))[0] for fx in (50.0, 3.0, -3.0))
    np.testing.assert_array_equal(far, bound)
    np.testing.assert_allclose(bound - back, [0.27, 0.0], atol=1e-6)


def test_fixed_magnitude_scales_the_action():
    # (3, 4) has length 5, so it becomes 3 / 5 * (3, 4) = (1.8, 2.4), and (0.1, 0) becomes (3, 0). Clipped
    # they are (3, 3) and (0.1, 0). The difference to no action is 0.045 times the force.
    family = Spaceship(SpaceshipOptions(fixed_magnitude=True))
    drift = step(place(2.5, 2.5), 1.0, (0.0, 0.0))[0]
    scaled = step(place(2.5, 2.5), 1.0, (3.0, 4.0), family)[0]
    np.testing.assert_allclose(scaled - drift, [0.081, 0.108], atol=1e-6)
    small = step(place(2.5, 2.5), 1.0, (0.1, 0.0), family)[0]
    np.testing.assert_allclose(small - drift, [0.135, 0.0], atol=1e-6)
    clipped = step(place(2.5, 2.5), 1.0, (3.0, 4.0))[0]
    np.testing.assert_allclose(clipped - drift, [0.135, 0.135], atol=1e-6)


def test_fixed_magnitude_without_a_direction_is_finite():
    family = Spaceship(SpaceshipOptions(fixed_magnitude=True))
    assert np.all(np.isfinite(step(place(2.5, 2.5), 1.0, (0.0, 0.0), family)[0]))


def test_ends_at_a_wall():
    # Environment 1, twice the action (0, -3). After the first step x = 2.5531488 and
    # y = 0.2 + 0.045 * (0.0944868 - 3) = 0.0692519. There distance^2 = 6.5233646, cubed 16.661246, plus 0.1
    # 16.761246, and the force is
    # 7.5 / 16.761246 * (2.5531488, 0.0692519) = (1.1424339, 0.0309876), so that
    #   x = 2.5531488 + 0.0514095 = 2.6045583,   y = 0.0692519 + 0.045 * (0.0309876 - 3) = -0.0643537.
    # Distance to the door: sqrt(0.1045583^2 + 5.0643537^2) = 5.0654329; exp(-15.1962987) = 2.513804e-7.
    first, reward, ended = step(place(2.5, 0.2), 0.0, (0.0, -3.0))
    np.testing.assert_allclose(first, [2.5531488, 0.0692519], rtol=1e-5)
    assert (reward, ended) == (0.0, False)
    second, reward, ended = step(place(*first), 0.0, (0.0, -3.0))
    np.testing.assert_allclose(second, [2.6045583, -0.0643537], rtol=1e-5)
    assert ended
    assert reward == pytest.approx(2.513804e-7, rel=1e-4)
    outside = SpaceshipState(jnp.asarray(second), jnp.array(2, jnp.int32))
    np.testing.assert_allclose(Spaceship().observe(outside), [2.6045583, 0.0], rtol=1e-5)


@pytest.mark.parametrize(("x", "y", "action"), [(0.1, 2.5, (-3, 0)), (4.9, 2.5, (3, 0)), (2.5, 4.9, (0, 3))])
def test_ends_at_every_other_side(x: float, y: float, action: tuple[float, float]):
    # 0.045 * 3 = 0.135 is more than the 0.1 to the wall; the field there adds less than 0.06.
    assert step(place(x, y), 0.3, action)[2]
    assert not step(place(x, y), 0.3, (-action[0], -action[1]))[2]


def test_ends_near_a_charge():
    # Angle pi / 2, so the charge at (0, 0) is 0 but still captures. From (0.3, 0.1) the other one pushes with
    # 7.5 / (24.1^1.5 + 0.1) * (0.3, -4.9) = 0.06333865 * (0.3, -4.9) = (0.0190016, -0.3103594). With (-3, 0):
    #   x = 0.3 + 0.045 * (0.0190016 - 3) = 0.1658551,  y = 0.1 - 0.045 * 0.3103594 = 0.0860338,
    # which is sqrt(0.0275079 + 0.0074018) = 0.1868 < 0.2 from the charge and inside the room.
    position, reward, ended = step(place(0.3, 0.1), math.pi / 2, (-3.0, 0.0))
    np.testing.assert_allclose(position, [0.1658551, 0.0860338], rtol=1e-5)
    assert ended
    assert reward > 0.0
    assert not step(place(0.3, 0.1), math.pi / 2, (0.0, 0.0))[2]  # 0.31 away


def test_ends_at_the_horizon():
    # Angle 0 at (2.5, 2.5): distance^2 = 12.5, cubed 44.194174, plus 0.1 = 44.294174; both components of the
    # force are 7.5 * 2.5 / 44.294174 = 0.4233062, so the ship moves by 0.0190488 to the right and up.
    # Distance to the door: sqrt(0.0190488^2 + 2.4809512^2) = 2.4810243; exp(-7.443073) = 5.854832e-4.
    assert step(place(2.5, 2.5, time=48), 0.0, (0.0, 0.0))[1:] == (0.0, False)
    _, reward, ended = step(place(2.5, 2.5, time=49), 0.0, (0.0, 0.0))
    assert ended
    assert reward == pytest.approx(5.854832e-4, rel=1e-4)


def test_door_is_worth_nearly_one():
    # Straight up through the middle of the door: y = 4.9 + 0.135 = 5.035 plus the field's push, which at
    # (2.5, 4.9) and angle 0 is 0.045 * 7.5 / (30.26^1.5 + 0.1) * (2.5, 4.9) = (0.0050655, 0.0099283).
    # Distance: sqrt(0.0050655^2 + 0.0449283^2) = 0.0452130; exp(-0.135639) = 0.873158.
    _, reward, ended = step(place(2.5, 4.9), 0.0, (0.0, 3.0))
    assert ended
    assert reward == pytest.approx(0.873158, rel=1e-4)


def test_environments_on_the_circle():
    family = Spaceship()
    train, test = family.train(0), family.test(0)
    assert train.numbers == tuple(range(1, 16))
    assert test.numbers == (16, 17, 18, 19, 20)
    # 20 environments, 18 degrees apart: number 6 at 90, 11 at 180, 16 at 270 and 20 at 342 degrees.
    degrees = np.degrees(np.concatenate([train.contexts, test.contexts])[:, 0])
    np.testing.assert_allclose(degrees[[0, 1, 5, 10, 15, 19]], [0, 18, 90, 180, 270, 342], atol=1e-4)
    assert train.contexts.shape == (15, 1)
    assert train.contexts.dtype == np.float32
    np.testing.assert_array_equal(family.train(1).contexts, train.contexts)


def test_interval_sampling_never_mixes_splits():
    family = Spaceship(SpaceshipOptions(sampling="interval"))
    draws = [(family.train(seed).contexts, family.test(seed).contexts) for seed in range(50)]
    train, test = (np.degrees(np.concatenate(part, axis=1)) for part in zip(*draws, strict=True))
    assert train.max() < 270.0 < test.min()
    assert test.max() < 360.0
    every = np.concatenate([train, test])  # [20, 50]
    assert np.all(every // 18 == np.arange(20)[:, None])  # each stays in its own interval of 18 degrees
    assert np.all(np.std(every, axis=1) > 3.0)  # a uniform draw has 18 / sqrt(12) = 5.2
    np.testing.assert_array_equal(family.train(7).contexts, draws[7][0])
