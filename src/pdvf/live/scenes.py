"""What a tab shows of a session: MuJoCo models in 3D, a plane with a path on it, or pictures that an environment draws.

A scene is told of every step, and draws poses between two steps: the page shows more frames than the agent makes steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import viser
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pdvf.families.base import DrawnFamily, MujocoFamily
from pdvf.families.mujoco import base_model, model
from pdvf.live import shapes
from pdvf.live.session import LiveSession

AGENT, GHOST = (31, 119, 208), (120, 126, 138)
"""Colours of the two: their paths, and the ghost itself."""
WIND = (51, 128, 242)
LABELS = ("adapts", "does not adapt")
FACING, LYING = (0.5**0.5, -(0.5**0.5), 0.0, 0.0), (0.0, 1.0, 0.0, 0.0)
"""Turn a picture to whoever looks along +y, or onto the floor."""
CORNERS = 100
"""Of a path, about."""


class Look(NamedTuple):
    """Where a camera stands at first, and how wide what it looks at is."""

    position: tuple[float, float, float]
    look_at: tuple[float, float, float]
    width: float

    def fitted(self, aspect: float, field: float, share: float = 0.0) -> Look:
        """The same sight on a screen that may be too narrow for it, and whose lowest share is covered.

        `aspect` is the screen's, `field` the camera's vertical angle in radians.
        """
        aim = np.array(self.look_at)
        ahead = aim - np.array(self.position)
        seen = 2 * float(np.linalg.norm(ahead)) * np.tan(field / 2)
        ahead, seen = ahead * max(1.0, self.width / (seen * aspect)), max(seen, self.width / aspect)
        side = np.cross(ahead, [0.0, 0.0, 1.0])
        up = np.cross(side, ahead) / max(float(np.linalg.norm(np.cross(side, ahead))), 1e-9)
        aim = aim - up * seen * share / 2
        return self._replace(position=tuple(aim - ahead), look_at=tuple(aim))  # type: ignore[arg-type]


class Scene(Protocol):
    """What a tab shows."""

    look: Look
    notice: str
    """What there is to say where it cannot be shown."""

    def set_context(self, context: np.ndarray) -> None:
        """What is hidden has changed to this."""
        ...

    def step(self, agent: Any, ghost: Any, first: bool) -> None:
        """The two simulations have made a step and show this (`Simulation.shown`), or an episode begins there."""
        ...

    def draw(self, share: float) -> None:
        """Draws what lies between the last two steps, from 0 to 1."""
        ...


def make_scene(scene: viser.SceneApi, session: LiveSession) -> Scene:
    """The scene that suits a family."""
    scene.configure_default_lights(cast_shadow=True)
    if isinstance(session.family, MujocoFamily):
        return MujocoScene(scene, session.family)
    if isinstance(session.family, DrawnFamily):
        return PlaneScene(scene, session.family)
    return PictureScene(scene)


class Path:
    """The line that one of the two leaves behind."""

    def __init__(
        self,
        scene: viser.SceneApi,
        name: str,
        colour: tuple[int, int, int],
        horizon: int,
        origin: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ) -> None:
        """What is nearer to the camera by its `origin` is drawn later, over a picture that lies there."""
        self._points: list[np.ndarray] = []
        self._steps, self._every, self._origin = 0, max(1, horizon // CORNERS), np.array(origin)
        nothing = np.zeros((1, 2, 3), np.float32)
        self._line = scene.add_line_segments(
            name, nothing, colour, thickness=2.5, thickness_units="screen", position=origin
        )

    def add(self, place: np.ndarray, first: bool) -> None:
        """Goes on to a place [3], or starts anew there."""
        if first:
            self._points, self._steps = [], -1
        self._steps += 1
        if self._steps % self._every == 0:
            self._points.append(place)
            points = (np.array([self._points[0], *self._points]) - self._origin).astype(np.float32)
            self._line.points = np.stack([points[:-1], points[1:]], axis=1)


class MujocoScene:
    """Two copies of a compiled model on one floor; the picture follows the agent."""

    notice = ""

    def __init__(self, scene: viser.SceneApi, family: MujocoFamily) -> None:
        self._scene, self._family = scene, family
        self._world = scene.add_frame("/world", show_axes=False)
        base = base_model(family)
        shown = shapes.meshes(base)
        rest = shapes.Poses(base)(base.qpos0)
        moving = sorted({mesh.body for mesh in shown} - {0})
        self._bodies = moving or [0]
        corners = np.concatenate(
            [mesh.vertices + rest[mesh.body, :3] for mesh in shown if mesh.body] or [np.ones((2, 3))]
        )
        self.size = float(np.max(np.ptp(corners, axis=0)))
        middle = (corners.min(axis=0) + corners.max(axis=0)) / 2
        self._middle = np.array([*rest[self._bodies[0], :2], 0.0])
        away = np.array([-0.4, -1.5, 1.0]) * max(self.size, 1e-3) * 2.0
        aim = np.array([0.0, 0.0, float(middle[2])])
        self.look = Look(tuple(aim + away), tuple(aim), 4 * self.size)  # type: ignore[arg-type]
        self._add_floors(base)
        self._frames = [
            [scene.add_frame(f"/world/{who}/{body}", show_axes=False) for body in self._bodies]
            for who in ("agent", "ghost")
        ]
        self._paths = [
            Path(scene, f"/world/path_{i}", colour, family.horizon) for i, colour in enumerate((AGENT, GHOST))
        ]
        self._labels = [
            scene.add_label(f"/world/label_{i}", text, anchor=("bottom-center", "top-center")[i])
            for i, text in enumerate(LABELS)
        ]
        self._meshes: list[shapes.Mesh] = []
        self._arrow: viser.ArrowsHandle | None = None

    def _add_floors(self, base: Any) -> None:
        cell = 10.0 ** np.floor(np.log10(max(self.size, 1e-3)))
        for i, (position, wxyz) in enumerate(shapes.floors(base)):
            self._scene.add_grid(
                f"/world/floor_{i}",
                infinite_grid=True,
                cell_size=cell / 2,
                section_size=cell,
                cell_color=(215, 219, 224),
                section_color=(170, 176, 184),
                fade_distance=30 * self.size,
                shadow_opacity=0.25,
                position=position,
                wxyz=wxyz,
            )

    def set_context(self, context: np.ndarray) -> None:
        """Takes the model of this context; triangles are sent where they differ."""
        variant = model(self._family, context)
        self._poses = shapes.Poses(variant)
        made = shapes.meshes(variant)
        same = [i < len(self._meshes) and mesh.same_as(self._meshes[i]) for i, mesh in enumerate(made)]
        for i, mesh in enumerate(made):
            if not same[i]:
                self._add(i, mesh)
        self._meshes = made
        self._show_wind(np.array(variant.opt.wind))

    def _add(self, i: int, mesh: shapes.Mesh) -> None:
        colour, opacity = tuple(mesh.colour[:3]), None if mesh.colour[3] >= 1 else float(mesh.colour[3])
        both = (("agent", colour, opacity), ("ghost", GHOST, 0.3))
        for who, shown, alpha in both if mesh.body else (("fixed", colour, opacity),):
            self._scene.add_mesh_simple(
                f"/world/{who}/{mesh.body}/{i}",
                mesh.vertices,
                mesh.faces,
                color=shown,
                opacity=alpha,
                cast_shadow=who != "ghost",
            )

    def _show_wind(self, wind: np.ndarray) -> None:
        """An arrow above the agent in the direction of the fluid; longer where it is faster, none where it is still."""
        speed = float(np.linalg.norm(wind))
        if self._arrow is not None:
            self._arrow.remove()
            self._arrow = None
        if speed > 0:
            start = np.array([0.0, 0.0, 1.1 * self.size])
            length = self.size * (0.2 + 0.8 * speed / (speed + 2.0))
            ends = np.stack([start - wind / speed * length / 2, start + wind / speed * length / 2])
            thick = 0.03 * self.size
            self._arrow = self._scene.add_arrows(
                "/wind", ends[None], WIND, shaft_radius=thick, head_radius=2.5 * thick, head_length=5 * thick
            )

    def step(self, agent: np.ndarray, ghost: np.ndarray, first: bool) -> None:
        """Both have moved, or stand at their start."""
        after = [self._poses(agent), self._poses(ghost)]
        self._before, self._after = after if first else self._after, after
        if first:
            self._middle[:2] = after[0][self._bodies[0], :2]
        for path, poses in zip(self._paths, after, strict=True):
            path.add(self._place(poses), first)

    def _place(self, poses: np.ndarray) -> np.ndarray:
        return np.array([*poses[self._bodies[0], :2], 0.01 * self.size])

    def draw(self, share: float) -> None:
        """Moves bodies, and the world under the camera once the agent is away from its middle."""
        places = []
        for frames, label, before, after in zip(self._frames, self._labels, self._before, self._after, strict=True):
            poses = shapes.between(before, after, share)
            for frame, body in zip(frames, self._bodies, strict=True):
                frame.position, frame.wxyz = poses[body, :3], poses[body, 3:]
            label.position = poses[self._bodies[0], :3] + np.array([0.0, 0.0, 0.45 * self.size])
            places.append(poses[self._bodies[0], :2])
        agent, ghost = places
        apart = (ghost - agent) / 2
        apart *= min(1.0, self.size / max(float(np.linalg.norm(apart)), 1e-9))
        self._follow(agent + apart)

    def _follow(self, place: np.ndarray) -> None:
        """Keeps a place, between the two while they are near each other, about the middle."""
        away = place - self._middle[:2]
        distance, free = float(np.linalg.norm(away)), 0.25 * self.size
        if distance > free:
            self._middle[:2] += away * (1 - free / distance)
        self._world.position = -self._middle


class PlaneScene:
    """A family that draws its own plane: the picture lies on the floor, the two move on it."""

    notice = ""

    def __init__(self, scene: viser.SceneApi, family: DrawnFamily) -> None:
        self._scene, self._family = scene, family
        _, self._centre, self._size = self._paint(family.test(0).contexts[0])
        width, height = self._size
        x, y = self._centre
        self.look = Look((x, y - 0.15 * height, max(width, height)), (x, y, 0.0), width)
        self._marks, self._paths, self._labels = [], [], []
        for i, (colour, alpha) in enumerate(((AGENT, None), (GHOST, 0.5))):
            self._marks.append(scene.add_icosphere(f"/mark_{i}", 0.018 * width, colour, opacity=alpha))
            self._paths.append(Path(scene, f"/path_{i}", colour, family.horizon, self.look.position))
            self._labels.append(scene.add_label(f"/label_{i}", LABELS[i], anchor=("bottom-left", "top-left")[i]))

    def _paint(self, context: np.ndarray) -> tuple[np.ndarray, tuple[float, float], tuple[float, float]]:
        """The family's drawing with its middle and its size in the family's units."""
        figure = Figure(figsize=(6, 6), dpi=100)
        canvas = FigureCanvasAgg(figure)
        share = 0.86
        axes = figure.add_axes(((1 - share) / 2, (1 - share) / 2, share, share))
        self._family.draw_scene(axes, context)
        canvas.draw()
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        picture = np.asarray(canvas.buffer_rgba())[..., :3].copy()
        return picture, ((left + right) / 2, (low + high) / 2), ((right - left) / share, (high - low) / share)

    def set_context(self, context: np.ndarray) -> None:
        """Draws the plane anew."""
        picture, self._centre, self._size = self._paint(context)
        self._scene.add_image("/plane", picture, *self._size, wxyz=LYING, position=(*self._centre, 0.0))

    def step(self, agent: np.ndarray, ghost: np.ndarray, first: bool) -> None:
        """Both have moved, or are at their start."""
        after = [self._place(agent), self._place(ghost)]
        self._before, self._after = after if first else self._after, after
        for path, place in zip(self._paths, after, strict=True):
            path.add(place, first)

    def _place(self, observation: np.ndarray) -> np.ndarray:
        return np.array([*observation[:2], 0.012 * self._size[0]])

    def draw(self, share: float) -> None:
        """Moves the two."""
        for mark, label, before, after in zip(self._marks, self._labels, self._before, self._after, strict=True):
            mark.position = label.position = (1 - share) * before + share * after


class PictureScene:
    """Pictures that environments draw themselves, beside each other; words where they draw none."""

    def __init__(self, scene: viser.SceneApi) -> None:
        self._scene, self.notice = scene, ""
        self.look = Look((0.0, -1.8, 0.0), (0.0, 0.0, 0.0), 2.1)
        self._frames: list[viser.ImageHandle | None] = [None, None]
        for i, text in enumerate(LABELS):
            scene.add_label(f"/label_{i}", text, position=(i - 0.5, 0.0, 0.55), anchor="bottom-center")

    def set_context(self, context: np.ndarray) -> None:
        """The pictures show it, if anything does."""

    def step(self, agent: np.ndarray | str, ghost: np.ndarray | str, first: bool) -> None:
        """The next pictures."""
        del first
        for i, shown in enumerate((agent, ghost)):
            frame, place = self._frames[i], (i - 0.5, 0.0, 0.0)
            if isinstance(shown, str) or shown.ndim != 3:
                self._scene.add_label(f"/words_{i}", "no picture", position=place, anchor="center-center")
                self.notice = f"The environment {shown if isinstance(shown, str) else 'draws no picture'}"
            elif frame is None:
                high, wide = shown.shape[:2]
                size = 0.96 / max(high, wide)
                self._frames[i] = self._scene.add_image(
                    f"/picture_{i}", shown, wide * size, high * size, wxyz=FACING, position=place
                )
            else:
                frame.image = shown

    def draw(self, share: float) -> None:
        """Nothing lies between two pictures."""
        del share
