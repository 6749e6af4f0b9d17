"""Ant in a hidden wind (section 4.2 and appendix D.3): radius * (cos d, sin d, 0), through the air's viscosity.

The task is in `families/ant.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tyro.conf import Fixed

from pdvf.core.validation import circle, positive, require
from pdvf.families.ant import MANY_ANTS, WIDE, Ant, AntOptions
from pdvf.families.base import MjSpec
from pdvf.families.circle import CircleOptions, OnCircle, wind
from pdvf.families.presets import mujoco
from pdvf.families.registry import FamilySpec


@dataclass(frozen=True)
class AntWindOptions(AntOptions, CircleOptions):
    """Constants of Ant in a wind."""

    radius: float = 4.0
    """Speed of the wind, radius * (cos d, sin d)."""
    density: Fixed[float] = 0.0
    """Density of the air."""
    viscosity: Fixed[float] = 0.05
    """Viscosity of the air; a wind acts through density or viscosity only."""
    probe_steps: int = 2
    """N_d: steps at the start of an episode from which the dynamics are inferred."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "radius")
        require(
            min(self.density, self.viscosity) >= 0 and max(self.density, self.viscosity) > 0,
            "environment.density, environment.viscosity",
            (self.density, self.viscosity),
            "none below 0 and one above it (a wind acts through them only)",
        )
        circle(self)


@dataclass(frozen=True)
class AntWind(OnCircle, Ant):
    """The Ant-wind family; every constant is an option with the paper's default."""

    options: AntWindOptions = field(default_factory=AntWindOptions)
    name = "ant-wind"
    arrow = "wind"
    dial_names = ("wind direction", "wind strength")

    def base(self) -> MjSpec:
        """The ant in still air."""
        spec = super().base()
        spec.option.density = self.options.density
        spec.option.viscosity = self.options.viscosity
        return spec

    def edit(self, spec: MjSpec, context: np.ndarray) -> None:
        """The air moves."""
        spec.option.wind = wind(self.options.radius, context)


FAMILY = FamilySpec(
    AntWind,
    AntWindOptions,
    "an ant in a hidden wind (MuJoCo; 20 environments, 5 for testing)",
    mujoco(
        {**MANY_ANTS, "value.power": 4.0, "value.high_return": 0.5},  # docs/decisions/0005-value.md
        equal=WIDE,
    ),
)
