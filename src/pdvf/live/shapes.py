"""MuJoCo models as triangles: for each body the meshes of its geoms, in the body's own frame."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import trimesh
from trimesh import creation
from viser.transforms import SE3, SO3

from pdvf.families.base import MjModel
from pdvf.families.mujoco import library

SECTIONS = 20
"""Sides of what is round."""
VISIBLE_GROUPS = 3
"""MuJoCo's viewers show geoms of the groups 0, 1 and 2; collision shapes are often in others."""
SHARP = np.pi / 4
"""An edge between faces that turn by more is sharp."""


class Mesh(NamedTuple):
    """Triangles of one colour that move with a body."""

    body: int
    vertices: np.ndarray  # [v, 3] in the body's frame
    faces: np.ndarray  # [f, 3]
    colour: np.ndarray  # [4] red, green, blue and opacity, from 0 to 1

    def same_as(self, other: Mesh) -> bool:
        """Whether it looks the same."""
        return all(np.array_equal(mine, its) for mine, its in zip(self, other, strict=True))


def meshes(model: MjModel) -> list[Mesh]:
    """What a compiled model looks like, planes aside; geoms that cannot be seen are left out."""
    made = []
    for geom in range(model.ngeom):
        colour = _colour(model, geom)
        shape = _shape(model, geom) if colour[3] > 0 and model.geom_group[geom] < VISIBLE_GROUPS else None
        if shape is not None:
            shape = trimesh.graph.smooth_shade(shape, angle=SHARP)
            place = SE3.from_rotation_and_translation(SO3(model.geom_quat[geom]), model.geom_pos[geom])
            vertices = place.apply(np.asarray(shape.vertices)).astype(np.float32)
            made.append(Mesh(int(model.geom_bodyid[geom]), vertices, np.asarray(shape.faces), colour))
    return made


def floors(model: MjModel) -> list[tuple[np.ndarray, np.ndarray]]:
    """Positions [3] and quaternions [4] of the planes of a model, which do not move."""
    plane = int(library().mjtGeom.mjGEOM_PLANE)
    found = [g for g in range(model.ngeom) if model.geom_type[g] == plane and model.geom_bodyid[g] == 0]
    return [(model.geom_pos[g].copy(), model.geom_quat[g].copy()) for g in found]


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


# --------------------------------------------------------------------------------------------------------------------


def _shape(model: MjModel, geom: int) -> trimesh.Trimesh | None:
    """The surface of a geom in its own frame; None for planes and what has no surface here."""
    kinds: Any = library().mjtGeom
    kind, size, asset = int(model.geom_type[geom]), model.geom_size[geom], int(model.geom_dataid[geom])
    count = (SECTIONS, SECTIONS)
    if kind == kinds.mjGEOM_BOX:
        return creation.box(2 * size)
    if kind == kinds.mjGEOM_SPHERE:
        return creation.uv_sphere(size[0], count)
    if kind == kinds.mjGEOM_ELLIPSOID:
        return creation.uv_sphere(1.0, count).apply_scale(size)
    if kind == kinds.mjGEOM_CAPSULE:
        return creation.capsule(2 * size[1], size[0], count)
    if kind == kinds.mjGEOM_CYLINDER:
        return creation.cylinder(size[0], 2 * size[1], SECTIONS)
    if kind in (kinds.mjGEOM_MESH, kinds.mjGEOM_SDF) and asset >= 0:
        vertex, face = model.mesh_vertadr[asset], model.mesh_faceadr[asset]
        vertices = model.mesh_vert[vertex : vertex + model.mesh_vertnum[asset]]
        return trimesh.Trimesh(vertices, model.mesh_face[face : face + model.mesh_facenum[asset]])
    if kind == kinds.mjGEOM_HFIELD:
        return _terrain(model, asset)
    return None


def _terrain(model: MjModel, field: int) -> trimesh.Trimesh:
    rows, columns = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
    x, y, top, _ = model.hfield_size[field]
    start = model.hfield_adr[field]
    heights = model.hfield_data[start : start + rows * columns].reshape(rows, columns) * top
    across, along = np.meshgrid(np.linspace(-x, x, columns), np.linspace(-y, y, rows))
    corner = np.arange(rows * columns).reshape(rows, columns)
    quads = np.stack([corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]], axis=-1).reshape(-1, 4)
    return trimesh.Trimesh(np.stack([across, along, heights], axis=-1).reshape(-1, 3), quads)


def _colour(model: MjModel, geom: int) -> np.ndarray:
    material = int(model.geom_matid[geom])
    own = model.geom_rgba[geom]
    plain = np.array_equal(own, np.array([0.5, 0.5, 0.5, 1.0], own.dtype))  # MuJoCo's default: the material's instead
    return np.array(model.mat_rgba[material] if material >= 0 and plain else own, float)
