"""Pictures of MuJoCo models without a screen, with the wind or current drawn in."""

from __future__ import annotations

import os
from ctypes.util import find_library
from typing import Any

import numpy as np

from pdvf.core.validation import ConfigError
from pdvf.families.base import MujocoFamily
from pdvf.families.mujoco import library, model

LARGEST = (640, 480)  # what MuJoCo draws into unless a model says otherwise
LIBRARIES = {"osmesa": "OSMesa", "egl": "EGL"}  # what draws without a screen
ARROW = np.array([0.2, 0.5, 0.95, 1.0], np.float32)


def paint_all(family: MujocoFamily, context: np.ndarray, qpos: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Pictures [n, height, width, 3] of positions [n, nq] under a context [c], seen from behind and above."""
    mujoco = library()
    width, height = size
    if not (0 < width <= LARGEST[0] and 0 < height <= LARGEST[1]):
        raise ConfigError(f"picture of {width} x {height}, expected at most {LARGEST[0]} x {LARGEST[1]} pixels")
    variant = model(family, context)
    data = mujoco.MjData(variant)
    scene = mujoco.MjvScene(variant, maxgeom=200)
    pictures = np.zeros((len(qpos), height, width, 3), np.uint8)
    canvas = _canvas(width, height)
    canvas.make_current()
    try:
        resources = mujoco.MjrContext(variant, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, resources)
        view = mujoco.MjrRect(0, 0, width, height)
        for picture, position in zip(pictures, qpos, strict=True):
            data.qpos[:] = position
            mujoco.mj_forward(variant, data)
            _arrange(scene, variant, data)
            mujoco.mjr_render(view, scene, resources)
            mujoco.mjr_readPixels(picture, None, view, resources)
        resources.free()
    finally:
        canvas.free()
    return pictures[:, ::-1].copy()  # OpenGL starts at the bottom


def _arrange(scene: Any, variant: Any, data: Any) -> None:
    """Fills a scene with a model as it stands, in the middle of the picture, and the wind."""
    mujoco = library()
    camera = mujoco.MjvCamera()
    camera.lookat[:] = data.subtree_com[1]
    camera.distance = min(6.0, 3.2 * _span(variant, data))  # a small model is looked at from nearby
    camera.elevation, camera.azimuth = -40.0, 90.0
    everything = mujoco.mjtCatBit.mjCAT_ALL
    mujoco.mjv_updateScene(variant, data, mujoco.MjvOption(), mujoco.MjvPerturb(), camera, everything, scene)
    if not variant.nlight:  # the camera's own is too weak to be the only one
        scene.lights[0].ambient[:], scene.lights[0].diffuse[:] = 0.4, 0.6
    _draw_wind(scene, camera.lookat, variant.opt.wind)


def _span(variant: Any, data: Any) -> float:
    """The longest side of a box around all that moves: a floor does not count."""
    moving = variant.geom_bodyid > 0
    centre, reach = data.geom_xpos[moving], variant.geom_rbound[moving, None]
    if not moving.any():
        return variant.stat.extent
    return float(np.max((centre + reach).max(axis=0) - (centre - reach).min(axis=0)))


def _canvas(width: int, height: int) -> Any:
    """Somewhere to draw: what MUJOCO_GL names, else OSMesa or EGL, whichever is there.

    The one that is installed is tried first: a process that has failed with one cannot have the other any more.
    """
    wanted, platform = os.environ.get("MUJOCO_GL", "").lower(), os.environ.get("PYOPENGL_PLATFORM")
    reasons = []
    there = sorted(LIBRARIES, key=lambda name: find_library(LIBRARIES[name]) is None)
    for name in (wanted,) if wanted in ("osmesa", "egl", "glfw") else there:
        try:
            return library(name).GLContext(width, height)
        except Exception as error:  # each library fails in its own way
            reasons.append(f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            if platform is None:
                os.environ.pop("PYOPENGL_PLATFORM", None)  # which the one that failed has set
    raise ConfigError(
        f"cannot draw without a screen ({'; '.join(reasons)}): install Debian's libosmesa6 or libegl1; "
        "everything but pictures works without"
    )


def _draw_wind(scene: Any, at: np.ndarray, wind: np.ndarray) -> None:
    """An arrow above the body in the direction of the fluid; none where it stands still."""
    mujoco = library()

    speed = float(np.linalg.norm(wind))
    if speed > 0:
        start = np.asarray(at) + np.array([0.0, 0.0, 0.9])
        arrow, kind = scene.geoms[scene.ngeom], mujoco.mjtGeom.mjGEOM_ARROW
        mujoco.mjv_initGeom(arrow, kind, np.zeros(3), np.zeros(3), np.eye(3).ravel(), ARROW)
        mujoco.mjv_connector(arrow, kind, 0.06, start, start + 1.2 * wind / speed)
        scene.ngeom += 1
