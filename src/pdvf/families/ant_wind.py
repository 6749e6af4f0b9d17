"""Ant in a hidden wind (section 4.2 and appendix D.3): radius * (cos d, sin d, 0), through the air's viscosity.

The task is in `families/ant.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pdvf.environments import AntWindOptions
from pdvf.families import ant, circle
from pdvf.families.base import Array, Box, MjSpec, Physics, Split
from pdvf.families.swimmer import wind


@dataclass(frozen=True)
class AntWind:
    """The Ant-wind family; every constant is an option with the paper's default."""

    options: AntWindOptions = field(default_factory=AntWindOptions)
    name = "ant-wind"
    context_names = ("angle",)

    @property
    def observation(self) -> Box:
        """Positions but x and y, and velocities; no bounds."""
        return ant.OBSERVATION

    @property
    def action(self) -> Box:
        """Torques of the eight joints, in units of the motors."""
        return ant.ACTION

    @property
    def horizon(self) -> int:
        """Steps until an episode ends anyway."""
        return self.options.horizon

    @property
    def probe_steps(self) -> int:
        """N_d."""
        return self.options.probe_steps

    @property
    def frame_skip(self) -> int:
        """Steps of the simulator in one step of the agent."""
        return self.options.frame_skip

    def train(self, seed: int) -> Split:
        """Environments 1 to 15."""
        return circle.train(self.options, seed)

    def test(self, seed: int) -> Split:
        """Environments 16 to 20."""
        return circle.test(self.options, seed)

    def base(self) -> MjSpec:
        """The ant in still air."""
        spec = ant.base(self.options)
        spec.option.density = self.options.density
        spec.option.viscosity = self.options.viscosity
        return spec

    def edit(self, spec: MjSpec, context: np.ndarray) -> None:
        """The air moves."""
        spec.option.wind = wind(self.options.radius, context)

    def start(self, key: Array, rest: Physics) -> Physics:
        """Rest with noise."""
        return ant.start(self.options, key, rest)

    def observe(self, physics: Physics) -> Array:
        """Everything but the place [27]."""
        return ant.observe(physics)

    def reward(self, before: Physics, after: Physics, action: Array) -> Array:
        """Speed along x and being there, less the cost of the action."""
        return ant.reward(self.options, before, after, action)

    def terminated(self, before: Physics, after: Physics, action: Array) -> Array:
        """Whether the ant has fallen."""
        del before, action
        return ant.terminated(self.options, after)
