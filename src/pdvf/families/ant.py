"""What the two Ant families share: Gymnasium's v3 task on four legs with eight motors, walk along +x.

With dt the time of a step of the agent, x and z the torso's position and a the action, clipped to [-1, 1]^8:

    reward = (x' - x) / dt + healthy_reward - control_cost * |a|^2

The episode ends when z leaves `healthy_height` or the state is no longer finite (the step that ends it still earns
`healthy_reward`, as in v3). There are no contact costs: v3 has them, but they are always 0 in the simulator it was
used with. Positions start at rest plus uniform noise from [-noise, noise], velocities normal with standard deviation
`noise`. The observation is all positions but x and y, then all velocities: 27 numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Box
from pdvf.families.base import MjSpec, Physics, Simulated
from pdvf.families.mujoco import asset, library

OBSERVATION = Box(np.full(27, -np.inf, np.float32), np.full(27, np.inf, np.float32))
ACTION = Box(-np.ones(8, np.float32), np.ones(8, np.float32))

PLACES = 13  # numbers of the observation before the velocities, of which that along x is the first


class Ant(Simulated):
    """The task of both families."""

    options: Any  # AntOptions

    @property
    def observation(self) -> Box:
        """Positions but x and y, and velocities; no bounds."""
        return OBSERVATION

    @property
    def action(self) -> Box:
        """Torques of the eight joints, in units of the motors."""
        return ACTION

    def base(self) -> MjSpec:
        """The model as it comes with Gymnasium."""
        mujoco = library()
        spec = asset("ant.xml")
        spec.option.timestep = self.options.timestep
        cones = {"pyramidal": mujoco.mjtCone.mjCONE_PYRAMIDAL, "elliptic": mujoco.mjtCone.mjCONE_ELLIPTIC}
        spec.option.cone = cones[self.options.cone]
        return spec

    def start(self, key: Array, rest: Physics) -> Physics:
        """Rest, with uniform noise on positions and normal noise on velocities.

        One draw serves both, the velocities through the inverse of the normal distribution: three draws, which a
        reset in every step of training would need, took five times as long to compile.
        """
        nq, noise = rest.qpos.shape[0], self.options.noise
        drawn = jax.random.uniform(key, (nq + rest.qvel.shape[0],), minval=np.nextafter(np.float32(-1), np.float32(0)))
        normal = 2**0.5 * jax.lax.erf_inv(drawn[nq:])
        return Physics(rest.qpos + noise * drawn[:nq], rest.qvel + noise * normal)

    def observe(self, physics: Physics) -> Array:
        """Everything but the place [27]."""
        return jnp.concatenate([physics.qpos[2:], physics.qvel])

    def reward(self, before: Physics, after: Physics, action: Array) -> Array:
        """Speed along x and being there, less the cost of the action; 0 speed where the simulator has diverged."""
        speed = (after.qpos[0] - before.qpos[0]) / (self.options.timestep * self.options.frame_skip)
        speed = jnp.where(jnp.isfinite(speed), speed, 0.0)
        return speed + self.options.healthy_reward - self.options.control_cost * jnp.sum(action**2)

    def terminated(self, before: Physics, after: Physics, action: Array) -> Array:
        """Whether the torso is too low or too high, or the simulator has diverged."""
        del before, action
        low, high = self.options.healthy_height
        finite = jnp.all(jnp.isfinite(after.qpos)) & jnp.all(jnp.isfinite(after.qvel))
        return ~(finite & (after.qpos[2] >= low) & (after.qpos[2] <= high))

    def danger(self, observation: Array) -> Array:
        """How high the torso is; it lies on the floor, as thick as it is, before it is too low."""
        low, high = self.options.healthy_height
        return (observation[0] - low) / (high - low)

    def reward_and_done(self, before: Array, action: Array, after: Array, time: Array) -> tuple[Array, Array]:
        """The reward with the mean speed before and after a step for that in between; the height ends it."""
        del time
        low, high = self.options.healthy_height
        speed = (before[PLACES] + after[PLACES]) / 2
        reward = speed + self.options.healthy_reward - self.options.control_cost * jnp.sum(action**2)
        return reward, ~((after[0] >= low) & (after[0] <= high))  # also where it is no number
