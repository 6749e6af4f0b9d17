"""MuJoCo models as triangles: closed surfaces of the right size, facing outwards, where the bodies are."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

pytest.importorskip("viser", reason="the live page needs viser: pip install 'pdvf[live]'")

from pdvf.families.builtin.ant_legs import AntLegs
from pdvf.families.mujoco import model
from pdvf.live import shapes

MODEL = """
<mujoco>
  <asset>
    <material name="red" rgba="1 0 0 1"/>
    <mesh name="wedge" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/>
    <hfield name="hill" nrow="3" ncol="4" size="2 1 0.5 0.1" elevation="0 0 0 0  0 1 1 0  0 0 0 0"/>
  </asset>
  <worldbody>
    <geom name="floor" type="plane" size="5 4 1" pos="0 0 -1"/>
    <geom name="terrain" type="hfield" hfield="hill"/>
    <body name="a" pos="1 2 3">
      <freejoint/>
      <geom type="sphere" size="0.5" material="red"/>
      <geom type="box" size="1 2 3" rgba="0 1 0 0.5"/>
      <geom type="capsule" size="0.5 1"/>
      <geom type="cylinder" size="0.5 1"/>
      <geom type="ellipsoid" size="1 0.5 0.25"/>
      <geom type="mesh" mesh="wedge"/>
      <geom type="sphere" size="9" group="3"/>
      <geom type="sphere" size="9" rgba="1 1 1 0"/>
    </body>
  </worldbody>
</mujoco>
"""


def volume(mesh: shapes.Mesh) -> float:
    """Of a closed surface whose faces turn to the left seen from outside; negative if they turn to the right."""
    a, b, c = (mesh.vertices[mesh.faces[:, i]].astype(float) for i in range(3))
    return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6)


@pytest.fixture(scope="module")
def compiled():
    return mujoco.MjModel.from_xml_string(MODEL)


def test_surfaces_are_closed_and_as_large_as_they_should_be(compiled):
    terrain, *made = shapes.meshes(compiled)
    ball = 4 / 3 * np.pi
    expected = [ball / 8, 48.0, ball / 8 + np.pi / 2, np.pi / 2, ball / 8, 1 / 6]
    assert len(made) == len(expected)  # no floor, and none of what cannot be seen
    for mesh, size in zip(made, expected, strict=True):
        assert mesh.body == 1
        assert volume(mesh) == pytest.approx(size, rel=0.06)
        assert volume(mesh) <= size * 1.0001  # round surfaces are cut from inside
    assert terrain.body == 0
    assert np.ptp(terrain.vertices, axis=0).tolist() == pytest.approx([4.0, 2.0, 0.5])


def test_colours_are_the_geoms_own_or_their_materials(compiled):
    _, ball, box, *_ = shapes.meshes(compiled)
    assert ball.colour.tolist() == [1, 0, 0, 1]
    assert box.colour.tolist() == [0, 1, 0, 0.5]


def test_planes_are_floors(compiled):
    ((position, wxyz),) = shapes.floors(compiled)
    assert position.tolist() == [0, 0, -1]
    assert wxyz.tolist() == [1, 0, 0, 0]


def test_poses_are_where_mujoco_has_the_bodies(compiled):
    poses = shapes.Poses(compiled)(np.array([4.0, 5.0, 6.0, 0.0, 1.0, 0.0, 0.0]))
    assert poses[1].tolist() == pytest.approx([4, 5, 6, 0, 1, 0, 0])


def test_half_way_between_two_poses():
    turned = np.array([[2.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]])
    rest = np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    half = 0.5**0.5
    assert shapes.between(rest, turned, 0.5)[0].tolist() == pytest.approx([1, 0, 0, half, 0, 0, -half])
    same = rest * [1, 1, 1, -1, -1, -1, -1]  # -q is the rotation q
    assert shapes.between(rest, same, 0.5)[0].tolist() == pytest.approx(rest[0].tolist())


def test_longer_legs_are_other_triangles_and_the_rest_stays():
    family = AntLegs()
    first = shapes.meshes(model(family, np.array([0.2] * 4 + [0.4] * 4, np.float32)))
    second = shapes.meshes(model(family, np.array([0.3, *[0.2] * 3, *[0.4] * 4], np.float32)))
    differ = [not mine.same_as(its) for mine, its in zip(first, second, strict=True)]
    assert sum(differ) == 1
    long = second[differ.index(True)]
    grown = np.ptp(long.vertices, axis=0) - np.ptp(first[differ.index(True)].vertices, axis=0)
    assert grown[:2].tolist() == pytest.approx([0.1, 0.1], abs=0.01)
