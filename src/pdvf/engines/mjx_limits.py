"""The most contacts and constraint rows that a MuJoCo model can have at once."""

from __future__ import annotations

import numpy as np

from pdvf.families.base import MjModel
from pdvf.families.mujoco import library


def contacts(model: MjModel) -> int:
    """Upper bound of the contacts of one world."""
    return sum(count for count, _ in _pairs(model))


def rows(model: MjModel) -> int:
    """Upper bound of the constraint rows of one world: contacts, limits, friction and equalities."""
    mujoco = library()

    elliptic = model.opt.cone == mujoco.mjtCone.mjCONE_ELLIPTIC
    touching = sum(count * _rows(dimension, elliptic) for count, dimension in _pairs(model))
    limits = int((model.jnt_limited != 0).sum() + (model.tendon_limited != 0).sum())
    friction = int((model.dof_frictionloss > 0).sum() + (model.tendon_frictionloss > 0).sum())
    return touching + limits + friction + 6 * model.neq


def _rows(dimension: int, elliptic: bool) -> int:
    return dimension if dimension == 1 or elliptic else 2 * (dimension - 1)


def _pairs(model: MjModel) -> list[tuple[int, int]]:
    """Most contacts and their dimension for each pair of geoms that may touch."""
    mujoco = library()

    kinds = mujoco.mjtGeom
    simple = {
        frozenset([kinds.mjGEOM_PLANE, kinds.mjGEOM_SPHERE]): 1,
        frozenset([kinds.mjGEOM_PLANE, kinds.mjGEOM_CAPSULE]): 2,
        frozenset([kinds.mjGEOM_SPHERE]): 1,
        frozenset([kinds.mjGEOM_SPHERE, kinds.mjGEOM_CAPSULE]): 1,
        frozenset([kinds.mjGEOM_CAPSULE]): 2,
    }
    found = []
    for i in range(model.ngeom):
        for j in range(i):
            if np.any(model.geom_contype[[i, j]] & model.geom_conaffinity[[j, i]]):
                both = frozenset([kinds(model.geom_type[i]), kinds(model.geom_type[j])])
                dimension = int(max(model.geom_condim[i], model.geom_condim[j]))
                found.append((simple.get(both, mujoco.mjMAXCONPAIR), dimension))
    found += [(mujoco.mjMAXCONPAIR, int(d)) for d in model.pair_dim]
    return found
