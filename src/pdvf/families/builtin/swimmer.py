"""Swimmer in a hidden current (section 4.2 and appendix D.2): three links, two motors, swim along +x.

The model is Gymnasium's (v3 and later share it). The hidden context is an angle d; the fluid moves with velocity
radius * (cos d, sin d, 0), which is MuJoCo's `wind`. A step of the agent is `frame_skip` steps of the simulator. With
dt the time of a step of the agent, x the torso's position and a the action, clipped to [-1, 1]^2:

    reward = forward_reward * (x' - x) / dt - control_cost * |a|^2

Nothing but the horizon ends an episode. Positions and velocities start at rest, each plus noise drawn uniformly from
[-noise, noise]. The observation is all positions but x and y, then all velocities: 8 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from tyro.conf import Fixed

from pdvf.core.arrays import Array, Box
from pdvf.core.validation import circle, positive, require
from pdvf.families.base import MjSpec, Physics, Simulated
from pdvf.families.circle import CircleOptions, OnCircle, wind
from pdvf.families.mujoco import asset, never, noisy_start
from pdvf.families.presets import mujoco
from pdvf.families.registry import FamilySpec


@dataclass(frozen=True)
class SwimmerOptions(CircleOptions):
    """Constants of Swimmer in a current: Gymnasium's v3 task with a moving fluid."""

    radius: float = 0.1
    """Speed of the current, radius * (cos d, sin d)."""
    density: Fixed[float] = 4000.0
    """Density of the fluid."""
    viscosity: Fixed[float] = 0.1
    """Viscosity of the fluid."""
    timestep: Fixed[float] = 0.01
    """Seconds of one step of the simulator."""
    frame_skip: Fixed[int] = 4
    """Steps of the simulator in one step of the agent."""
    forward_reward: Fixed[float] = 1.0
    """Weight of the velocity along x."""
    control_cost: Fixed[float] = 1e-4
    """Weight of the squared action."""
    noise: Fixed[float] = 0.1
    """Positions and velocities at the start are drawn from their rest values +- this."""
    horizon: int = 1000
    """Steps after which an episode ends."""
    probe_steps: int = 1
    """N_d: steps at the start of an episode from which the dynamics are inferred."""

    def __post_init__(self) -> None:
        positive(self, "radius", "density", "viscosity", "timestep", "frame_skip", "horizon")
        require(self.noise >= 0, "environment.noise", self.noise, "at least 0")
        circle(self)


@dataclass(frozen=True)
class Swimmer(OnCircle, Simulated):
    """The Swimmer family; every constant is an option with the paper's default."""

    options: SwimmerOptions = field(default_factory=SwimmerOptions)
    name = "swimmer"
    arrow = "current"
    dial_names = ("direction of the current", "strength of the current")

    @property
    def observation(self) -> Box:
        """Three angles, then velocities of x, y and the angles; no bounds."""
        return Box.symmetric(8)

    @property
    def action(self) -> Box:
        """Torques of the two joints, in units of the motors."""
        return Box.symmetric(2, 1.0)

    def base(self) -> MjSpec:
        """The model in a fluid at rest."""
        spec = asset("swimmer.xml")
        spec.option.timestep = self.options.timestep
        spec.option.density = self.options.density
        spec.option.viscosity = self.options.viscosity
        return spec

    def edit(self, spec: MjSpec, context: np.ndarray) -> None:
        """The fluid moves."""
        spec.option.wind = wind(self.options.radius, context)

    def start(self, key: Array, rest: Physics) -> Physics:
        """Rest, with uniform noise on everything."""
        return noisy_start(rest, self.options.noise, key)

    def reward(self, before: Physics, after: Physics, action: Array) -> Array:
        """Speed along x, less the cost of the action."""
        speed = (after.qpos[0] - before.qpos[0]) / self.control_step
        return self.options.forward_reward * speed - self.options.control_cost * jnp.sum(action**2)

    terminated = staticmethod(never)


FAR_SIGHTED = {"ppo.discount": 0.9999}
"""A swimmer is worth what it covers in 1000 steps, so the far future has to count."""

FAMILY = FamilySpec(
    Swimmer,
    SwimmerOptions,
    "a swimmer in a hidden current (MuJoCo; 20 environments, 5 for testing)",
    mujoco(
        common={
            "ppo.environments": 128,
            "ppo.rollout": 64,
            "collect.episodes": 4,
            "value.power": 4.0,  # docs/decisions/0005-value.md
            "value.high_return": 0.5,
            "value.interpolations": 400,
            "value.uniform": 100,
            "value.probes": 4,
            "value.stages": 10,
            "value.decoder_rounds": 4,
        },
        best=FAR_SIGHTED,
        quick=FAR_SIGHTED,
    ),
)
