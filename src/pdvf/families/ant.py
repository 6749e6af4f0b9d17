"""What the two Ant families share: Gymnasium's v3 task on four legs with eight motors, walk along +x.

With dt the time of a step of the agent, x and z the torso's position and a the action, clipped to [-1, 1]^8:

    reward = (x' - x) / dt + healthy_reward - control_cost * |a|^2

The episode ends when z leaves `healthy_height` or the state is no longer finite (the step that ends it still earns
`healthy_reward`, as in v3). There are no contact costs: v3 has them, but they are always 0 in the simulator it was
used with. Positions start at rest plus uniform noise from [-noise, noise], velocities normal with standard deviation
`noise`. The observation is all positions but x and y, then all velocities: 27 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from tyro.conf import Fixed

from pdvf.core.arrays import Array, Box
from pdvf.core.validation import positive, require
from pdvf.families.base import MjSpec, Physics, Simulated
from pdvf.families.mujoco import asset, library

MANY_ANTS = {"ppo.environments": 512, "ppo.rollout": 16}
"""docs/decisions/0003-ppo.md"""
WIDE = {"baselines.hidden": 128, "baselines.minibatches": 128}
"""One policy for all ants has more to learn than one for each, and with equal budgets the steps for it."""


@dataclass(frozen=True)
class AntOptions:
    """Constants that both Ant families share: Gymnasium's v3 task without contact forces."""

    timestep: Fixed[float] = 0.01
    """Seconds of one step of the simulator."""
    frame_skip: Fixed[int] = 5
    """Steps of the simulator in one step of the agent."""
    healthy_reward: Fixed[float] = 1.0
    """Reward of every step."""
    control_cost: Fixed[float] = 0.5
    """Weight of the squared action."""
    healthy_height: Fixed[tuple[float, float]] = (0.2, 1.0)
    """The episode ends when the torso is lower or higher than this."""
    noise: Fixed[float] = 0.1
    """At the start positions are rest +- this, velocities normal with this standard deviation."""
    cone: Fixed[Literal["pyramidal", "elliptic"]] = "pyramidal"
    """Friction cone; MuJoCo in C and MJX orient the pyramid differently and agree on the ellipse."""
    horizon: int = 256
    """Steps after which an episode ends."""

    def __post_init__(self) -> None:
        positive(self, "timestep", "frame_skip", "horizon")
        require(self.noise >= 0, "environment.noise", self.noise, "at least 0")
        require(self.cone in ("pyramidal", "elliptic"), "environment.cone", self.cone, "'pyramidal' or 'elliptic'")
        low, high = self.healthy_height
        require(low < high, "environment.healthy_height", self.healthy_height, "two heights, the lower first")


class Ant(Simulated):
    """The task of both families."""

    options: Any  # AntOptions

    @property
    def observation(self) -> Box:
        """Positions but x and y, and velocities; no bounds."""
        return Box.symmetric(27)

    @property
    def action(self) -> Box:
        """Torques of the eight joints, in units of the motors."""
        return Box.symmetric(8, 1.0)

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

    def reward(self, before: Physics, after: Physics, action: Array) -> Array:
        """Speed along x and being there, less the cost of the action; 0 speed where the simulator has diverged."""
        speed = (after.qpos[0] - before.qpos[0]) / self.control_step
        speed = jnp.where(jnp.isfinite(speed), speed, 0.0)
        return speed + self.options.healthy_reward - self.options.control_cost * jnp.sum(action**2)

    def terminated(self, before: Physics, after: Physics, action: Array) -> Array:
        """Whether the torso is too low or too high, or the simulator has diverged."""
        low, high = self.options.healthy_height
        finite = jnp.all(jnp.isfinite(after.qpos)) & jnp.all(jnp.isfinite(after.qvel))
        return ~(finite & (after.qpos[2] >= low) & (after.qpos[2] <= high))

    def danger(self, observation: Array) -> Array:
        """How high the torso is; it lies on the floor, as thick as it is, before it is too low."""
        low, high = self.options.healthy_height
        return (observation[0] - low) / (high - low)
