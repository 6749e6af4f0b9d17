"""MuJoCo models as triangles: for each body the meshes of its geoms, in the body's own frame."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pdvf.families.base import MjModel
from pdvf.families.mujoco import library

SECTIONS = 20
"""Sides of what is round."""
VISIBLE_GROUPS = 3
"""MuJoCo's viewers show geoms of the groups 0, 1 and 2; collision shapes are often in others."""


class Mesh(NamedTuple):
    """Triangles of one colour that move with a body."""

    body: int
    vertices: np.ndarray  # [v, 3] in the body's frame
    faces: np.ndarray  # [f, 3]
    colour: np.ndarray  # [4] red, green, blue and opacity, from 0 to 1

    def same_as(self, other: Mesh) -> bool:
        """Whether it looks the same."""
        return all(np.array_equal(mine, its) for mine, its in zip(self, other, strict=True))


class Floor(NamedTuple):
    """A plane of the world: where its middle is, and its half sizes, 0 for infinite."""

    position: np.ndarray  # [3]
    wxyz: np.ndarray  # [4]
    size: np.ndarray  # [2]


def meshes(model: MjModel) -> list[Mesh]:
    """What a compiled model looks like, planes aside; geoms that cannot be seen are left out."""
    made = []
    for geom in range(model.ngeom):
        colour = _colour(model, geom)
        shape = _shape(model, geom) if colour[3] > 0 and model.geom_group[geom] < VISIBLE_GROUPS else None
        if shape is not None:
            vertices, faces = shape
            placed = vertices @ _rotation(model.geom_quat[geom]).T + model.geom_pos[geom]
            made.append(Mesh(int(model.geom_bodyid[geom]), placed.astype(np.float32), faces, colour))
    return made


def floors(model: MjModel) -> list[Floor]:
    """The planes of a model, which do not move."""
    plane = int(library().mjtGeom.mjGEOM_PLANE)
    found = [g for g in range(model.ngeom) if model.geom_type[g] == plane and model.geom_bodyid[g] == 0]
    return [Floor(model.geom_pos[g].copy(), model.geom_quat[g].copy(), model.geom_size[g, :2].copy()) for g in found]


class Poses:
    """Where the bodies of a model are for positions [nq]."""

    def __init__(self, model: MjModel) -> None:
        self._model, self._data = model, library().MjData(model)

    def __call__(self, qpos: np.ndarray) -> np.ndarray:
        """Position and quaternion [bodies, 7] in the world."""
        self._data.qpos[:] = qpos
        library().mj_kinematics(self._model, self._data)
        return np.concatenate([self._data.xpos, self._data.xquat], axis=1)


def between(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    """Poses [n, 7] on the way from the first (share 0) to the second (share 1)."""
    sign = np.where(np.sum(first[:, 3:] * second[:, 3:], axis=1, keepdims=True) < 0, -1.0, 1.0)
    second = np.concatenate([second[:, :3], sign * second[:, 3:]], axis=1)  # q and -q are one rotation
    mixed = (1 - share) * first + share * second
    mixed[:, 3:] /= np.linalg.norm(mixed[:, 3:], axis=1, keepdims=True)
    return mixed


def sphere(radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Vertices [v, 3] and faces [f, 3] of a ball about the origin."""
    return _revolve(_arc(radius, 0.0))


# --------------------------------------------------------------------------------------------------------------------


def _shape(model: MjModel, geom: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Vertices and faces of a geom in its own frame; None for planes and what has no surface here."""
    kinds: Any = library().mjtGeom
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind == kinds.mjGEOM_BOX:
        return _box(size)
    if kind == kinds.mjGEOM_SPHERE:
        return sphere(size[0])
    if kind == kinds.mjGEOM_ELLIPSOID:
        vertices, faces = sphere(1.0)
        return vertices * size, faces
    if kind == kinds.mjGEOM_CAPSULE:
        return _revolve(_arc(size[0], size[1]))
    if kind == kinds.mjGEOM_CYLINDER:
        r, h = size[0], size[1]
        return _revolve(np.array([[0, -h], [r, -h], [r, -h], [r, h], [r, h], [0, h]]))  # edges twice: they are sharp
    if kind in (kinds.mjGEOM_MESH, kinds.mjGEOM_SDF) and model.geom_dataid[geom] >= 0:
        return _asset(model, int(model.geom_dataid[geom]))
    if kind == kinds.mjGEOM_HFIELD:
        return _terrain(model, int(model.geom_dataid[geom]))
    return None


def _arc(radius: float, half_length: float) -> np.ndarray:
    """Profile [n, 2], distance from the axis and height, of a ball that is cut in two and pulled apart."""
    angles = np.linspace(-np.pi / 2, np.pi / 2, SECTIONS // 2 + 1)
    lower, upper = angles[: SECTIONS // 4 + 1], angles[SECTIONS // 4 :]
    if half_length > 0:
        angles, lift = np.concatenate([lower, upper]), np.repeat([-1.0, 1.0], [len(lower), len(upper)]) * half_length
    else:
        lift = np.zeros(len(angles))
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=1) + np.stack([0 * lift, lift], axis=1)


def _revolve(profile: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The surface that a profile [n, 2] makes when it turns about the z axis."""
    turn = np.arange(SECTIONS) * 2 * np.pi / SECTIONS
    radius, height = profile.T[:, :, None]
    vertices = np.stack([radius * np.cos(turn), radius * np.sin(turn), height + 0 * turn], axis=-1).reshape(-1, 3)
    return vertices, _quads(len(profile), SECTIONS, closed=True)


def _quads(rows: int, columns: int, closed: bool) -> np.ndarray:
    """Faces of a grid of vertices [rows, columns] whose last column may be joined to the first."""
    corner = np.arange(rows * columns).reshape(rows, columns)
    corner = np.concatenate([corner, corner[:, :1]], axis=1) if closed else corner
    a, b, c, d = corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]
    return np.stack([a, b, c, a, c, d], axis=-1).reshape(-1, 3)


def _box(half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Six sides with corners of their own, so that the edges are sharp."""
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    vertices = []
    for axis in range(3):
        for side in (-1, 1):
            corners = np.roll(np.insert(square[::side], 2, side, axis=1), axis + 1, axis=1)  # turned x, y, z -> y, z, x
            vertices.append(corners)
    faces = np.array([[0, 1, 2], [0, 2, 3]]) + 4 * np.arange(6)[:, None, None]
    return np.concatenate(vertices) * half, faces.reshape(-1, 3)


def _asset(model: MjModel, mesh: int) -> tuple[np.ndarray, np.ndarray]:
    vertex, face = model.mesh_vertadr[mesh], model.mesh_faceadr[mesh]
    vertices = model.mesh_vert[vertex : vertex + model.mesh_vertnum[mesh]]
    return vertices.copy(), model.mesh_face[face : face + model.mesh_facenum[mesh]].copy()


def _terrain(model: MjModel, field: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
    x, y, top, _ = model.hfield_size[field]
    start = model.hfield_adr[field]
    heights = model.hfield_data[start : start + rows * columns].reshape(rows, columns) * top
    across, along = np.meshgrid(np.linspace(-x, x, columns), np.linspace(-y, y, rows))
    return np.stack([across, along, heights], axis=-1).reshape(-1, 3), _quads(rows, columns, closed=False)


def _colour(model: MjModel, geom: int) -> np.ndarray:
    material = int(model.geom_matid[geom])
    own = model.geom_rgba[geom]
    plain = np.array_equal(own, np.array([0.5, 0.5, 0.5, 1.0], own.dtype))  # MuJoCo's default: the material's instead
    return np.array(model.mat_rgba[material] if material >= 0 and plain else own, float)


def _rotation(wxyz: np.ndarray) -> np.ndarray:
    matrix = np.zeros(9)
    library().mju_quat2Mat(matrix, np.asarray(wxyz, float))
    return matrix.reshape(3, 3)
