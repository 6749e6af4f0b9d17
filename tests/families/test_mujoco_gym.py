"""Gymnasium ids of the MuJoCo families, and their pictures."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from pdvf.core.validation import ConfigError
from pdvf.families.gym_ids import register
from pdvf.families.mujoco import library

pytest.importorskip("mujoco")
NAMES = ["Swimmer", "AntWind", "AntLegs"]
register()


@pytest.fixture(autouse=True)
def no_key_checks():
    """Key-reuse checking does not know callbacks."""
    with jax.debug_key_reuse(False):
        yield


def can_draw() -> bool:
    from pdvf.engines.rendering import _canvas

    try:
        _canvas(8, 8).free()
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_passes_gymnasiums_checker(name):
    env = gymnasium.make(f"pdvf/{name}-v0", context=3).unwrapped
    with warnings.catch_warnings():  # nothing bounds velocities
        warnings.filterwarnings("ignore", ".*A Box observation space m.*imum value is.*")
        check_env(env, skip_render_check=True)
    _, info = env.reset(seed=0)
    assert info["environment"] == 3
    assert set(info["context"]) == set(env.unwrapped.family.context_names)


def test_many_are_each_alone():
    alone = [gymnasium.make("pdvf/AntLegs-v0", context=i) for i in (0, 15)]
    many = gymnasium.make_vec("pdvf/AntLegs-v0", 2, vectorization_mode="vector_entry_point", context=[0, 15])
    first, info = many.reset(seed=5)
    assert info["environment"].tolist() == [0, 15]
    assert info["_environment"].tolist() == [True, True]
    np.testing.assert_array_equal(first, [env.reset(seed=5 + i)[0] for i, env in enumerate(alone)])
    action = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    for _ in range(3):
        observation, reward, *_ = many.step(action)
        steps = [env.step(one) for env, one in zip(alone, action, strict=True)]
    np.testing.assert_allclose(observation, [one[0] for one in steps], rtol=0, atol=1e-5)
    np.testing.assert_allclose(reward, [one[1] for one in steps], rtol=0, atol=1e-5)


@pytest.mark.skipif(not can_draw(), reason="neither OSMesa nor EGL is installed")
def test_pictures_show_body_and_wind():
    env = gymnasium.make("pdvf/AntWind-v0", context={"angle": 0.0}, render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (240, 320, 3)
    assert picture.dtype == np.uint8
    red, green, blue = (picture[..., i].astype(int) for i in range(3))
    body = (red > blue + 40) & (red > 120)
    arrow = (blue > red + 60) & (blue > green + 30)
    assert body.sum() > 200
    rows, columns = np.nonzero(arrow)
    assert len(rows) > 20
    assert columns.max() - columns.min() > 2 * (rows.max() - rows.min())  # along x, to the right


def test_nowhere_to_draw_is_one_clear_line(monkeypatch):
    from pdvf.engines import rendering as picture

    def only_mujoco(part: str = "") -> Any:
        if part:
            raise ImportError(f"no {part} here\nand more")
        return library()

    env = gymnasium.make("pdvf/Swimmer-v0", context=1, render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(picture, "library", only_mujoco)
    monkeypatch.setattr(picture, "find_library", lambda name: None)
    with pytest.raises(ConfigError) as error:
        env.render()
    assert str(error.value) == (
        "cannot draw without a screen (osmesa: no osmesa here; egl: no egl here): install Debian's libosmesa6 or "
        "libegl1; everything but pictures works without"
    )


@pytest.mark.parametrize(("there", "first"), [("EGL", "egl"), ("OSMesa", "osmesa")])
def test_what_is_installed_draws(monkeypatch, there, first):
    """And is asked first: PyOpenGL keeps to what it was loaded with, even if that has failed."""
    from pdvf.engines import rendering as picture

    asked = []

    def library_of(part: str = "") -> Any:
        asked.append(part)
        return SimpleNamespace(GLContext=lambda width, height: part)

    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(picture, "library", library_of)
    monkeypatch.setattr(picture, "find_library", lambda name: "found" if name == there else None)
    assert picture._canvas(8, 8) == first
    assert asked == [first]


@pytest.mark.skipif(not can_draw(), reason="neither OSMesa nor EGL is installed")
def test_a_model_without_a_light_and_with_a_floor_of_some_size_is_seen():
    """Its body fills a good part of the picture, in its own colour."""
    import mujoco

    from pdvf.engines.rendering import paint_all
    from pdvf.families import MujocoModel

    xml = """<mujoco><worldbody>
      <geom name="floor" type="plane" size="9 9 .1" rgba=".5 .5 .5 1"/>
      <body name="block" pos="0 0 .3"><joint name="slide" type="slide" axis="1 0 0"/>
        <geom name="block" type="box" size=".2 .2 .2" rgba="0 0 1 1"/></body>
    </worldbody><actuator><motor name="motor" joint="slide" ctrlrange="-1 1"/></actuator></mujoco>"""
    family = MujocoModel(
        name="block",
        model=lambda: mujoco.MjSpec.from_string(xml),
        edit_model=lambda spec, context: None,
        reward_of=lambda before, after, action: after.qpos[0],
        train_contexts=[{"mass": 1.0}, {"mass": 2.0}],
        test_contexts=[{"mass": 1.5}],
        horizon=3,
    )
    (picture,) = paint_all(family, np.array([1.5], np.float32), np.zeros((1, 1)), (160, 120)).astype(int)
    body = (picture[..., 2] > 150) & (picture[..., 0] < 60)
    assert body.mean() > 0.03
