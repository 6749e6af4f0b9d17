"""Ant in a hidden wind (section 4.2 and appendix D.3): radius * (cos d, sin d, 0), through the air's viscosity.

The task is in `families/ant.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pdvf.families.ant import Ant
from pdvf.families.base import MjSpec
from pdvf.families.circle import OnCircle, wind
from pdvf.families.options import AntWindOptions


@dataclass(frozen=True)
class AntWind(OnCircle, Ant):
    """The Ant-wind family; every constant is an option with the paper's default."""

    options: AntWindOptions = field(default_factory=AntWindOptions)
    name = "ant-wind"

    def base(self) -> MjSpec:
        """The ant in still air."""
        spec = super().base()
        spec.option.density = self.options.density
        spec.option.viscosity = self.options.viscosity
        return spec

    def edit(self, spec: MjSpec, context: np.ndarray) -> None:
        """The air moves."""
        spec.option.wind = wind(self.options.radius, context)
