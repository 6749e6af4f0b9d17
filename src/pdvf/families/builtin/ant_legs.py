"""Ant with other legs (section 4.2 and appendix D.4): the hidden context is the lengths of four legs and ankles.

A length is what the model writes: a limb of length l goes from its joint to (+-l, +-l), so it is sqrt(2) l long.
Mass and inertia follow from the shape. Training environments have medium legs and ankles that are short, medium or
long in every combination up to the order of the legs, but not all alike: 12, numbered 0 to 11. In test environments
12 to 15 all four legs are alike: legs short or long, ankles short or long. The task is in `families/ant.py`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from tyro.conf import Fixed

from pdvf.core.validation import episode, require
from pdvf.families.ant import MANY_ANTS, WIDE, Ant, AntOptions
from pdvf.families.base import MjSpec, Split
from pdvf.families.presets import mujoco
from pdvf.families.registry import FamilySpec


@dataclass(frozen=True)
class AntLegsOptions(AntOptions):
    """Constants of Ant with other legs."""

    legs: Fixed[tuple[float, float, float]] = (0.1, 0.2, 0.3)
    """Short, medium and long upper legs, as the model writes them: what a leg spans along x and along y."""
    ankles: Fixed[tuple[float, float, float]] = (0.2, 0.4, 0.6)
    """Short, medium and long lower legs."""
    probe_steps: int = 4
    """N_d: steps at the start of an episode from which the dynamics are inferred."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("legs", "ankles"):
            lengths = getattr(self, name)
            ordered = 0 < lengths[0] < lengths[1] < lengths[2]
            require(ordered, f"environment.{name}", lengths, "three lengths above 0, the shortest first")
        episode(self)


LIMBS = (  # geoms of upper and lower leg, and where the leg points
    ("left_leg_geom", "left_ankle_geom", (1, 1)),
    ("right_leg_geom", "right_ankle_geom", (-1, 1)),
    ("back_leg_geom", "third_ankle_geom", (-1, -1)),
    ("rightback_leg_geom", "fourth_ankle_geom", (1, -1)),
)


@dataclass(frozen=True)
class AntLegs(Ant):
    """The Ant-legs family; every constant is an option with the paper's default."""

    options: AntLegsOptions = field(default_factory=AntLegsOptions)
    name = "ant-legs"
    context_names = ("leg_1", "leg_2", "leg_3", "leg_4", "ankle_1", "ankle_2", "ankle_3", "ankle_4")

    def train(self, seed: int) -> Split:
        """Environments 0 to 11."""
        ankles = itertools.combinations_with_replacement(self.options.ankles, 4)
        bodies = [(self.options.legs[1],) * 4 + four for four in ankles if len(set(four)) > 1]
        return Split(tuple(range(len(bodies))), np.array(bodies, np.float32))

    def test(self, seed: int) -> Split:
        """Environments 12 to 15."""
        first = len(self.train(seed).numbers)
        ends = itertools.product(self.options.legs[::2], self.options.ankles[::2])
        bodies = [(leg,) * 4 + (ankle,) * 4 for leg, ankle in ends]
        return Split(tuple(range(first, first + len(bodies))), np.array(bodies, np.float32))

    def edit(self, spec: MjSpec, context: np.ndarray) -> None:
        """Stretches the limbs; what hangs on an upper leg moves with its end."""
        lengths = np.asarray(context, np.float64).round(6)  # 0.2 and not the nearest float32
        for (leg, ankle, (x, y)), leg_length, ankle_length in zip(LIMBS, lengths[:4], lengths[4:], strict=True):
            upper, lower = spec.geom(leg), spec.geom(ankle)
            upper.fromto = np.array([0, 0, 0, x * leg_length, y * leg_length, 0])
            lower.fromto = np.array([0, 0, 0, x * ankle_length, y * ankle_length, 0])
            lower.parent.pos = np.array([x * leg_length, y * leg_length, 0])


FAMILY = FamilySpec(
    AntLegs,
    AntLegsOptions,
    "an ant with other legs (MuJoCo; 16 environments, 4 for testing)",
    mujoco(MANY_ANTS, equal=WIDE),
)
