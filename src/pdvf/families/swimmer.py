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

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Box
from pdvf.families.base import MjSpec, Physics, Simulated
from pdvf.families.circle import OnCircle, wind
from pdvf.families.mujoco import asset
from pdvf.families.options import SwimmerOptions

PLACES = 3  # numbers of the observation before the velocities, of which that along x is the first


@dataclass(frozen=True)
class Swimmer(OnCircle, Simulated):
    """The Swimmer family; every constant is an option with the paper's default."""

    options: SwimmerOptions = field(default_factory=SwimmerOptions)
    name = "swimmer"

    @property
    def observation(self) -> Box:
        """Three angles, then velocities of x, y and the angles; no bounds."""
        return Box(np.full(8, -np.inf, np.float32), np.full(8, np.inf, np.float32))

    @property
    def action(self) -> Box:
        """Torques of the two joints, in units of the motors."""
        return Box(-np.ones(2, np.float32), np.ones(2, np.float32))

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
        nq, noise = rest.qpos.shape[0], self.options.noise
        drawn = jax.random.uniform(key, (nq + rest.qvel.shape[0],), minval=-noise, maxval=noise)
        return Physics(rest.qpos + drawn[:nq], rest.qvel + drawn[nq:])

    def observe(self, physics: Physics) -> Array:
        """Everything but the place [8]."""
        return jnp.concatenate([physics.qpos[2:], physics.qvel])

    def reward(self, before: Physics, after: Physics, action: Array) -> Array:
        """Speed along x, less the cost of the action."""
        speed = (after.qpos[0] - before.qpos[0]) / (self.options.timestep * self.options.frame_skip)
        return self.options.forward_reward * speed - self.options.control_cost * jnp.sum(action**2)

    def terminated(self, before: Physics, after: Physics, action: Array) -> Array:
        """Never."""
        del before, after, action
        return jnp.zeros((), bool)

    def reward_and_done(self, before: Array, action: Array, after: Array, time: Array) -> tuple[Array, Array]:
        """The reward with the mean of the speeds before and after a step for the speed in between."""
        del time
        speed = (before[PLACES] + after[PLACES]) / 2
        cost = self.options.control_cost * jnp.sum(action**2)
        return self.options.forward_reward * speed - cost, jnp.zeros((), bool)
