"""Spaceship (section 4.2 and appendix D.1): steer a unit charge through a room with two hidden charges to a door.

The hidden context is an angle d; the two charges are q = radius * (cos d, sin d). A step moves the ship by

    x <- x + (F_agent + F_env(x; d)) * dt^2 / 2,     F_env(x; d) = k * sum_i q_i (x - x_i) / (|x - x_i|^3 + eps)

There is no velocity. The episode ends when the ship leaves the room (through a wall or the door), comes within
`capture` of a charge, or has made `horizon` steps; only then is there a reward, exp(-decay * distance to the door).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Box
from pdvf.families.base import Timed
from pdvf.families.circle import OnCircle
from pdvf.families.options import SpaceshipOptions


class SpaceshipState(NamedTuple):
    """Position [2] and steps made []."""

    position: Array
    time: Array


@dataclass(frozen=True)
class Spaceship(OnCircle, Timed):
    """The Spaceship family; every constant is an option with the paper's default."""

    options: SpaceshipOptions = field(default_factory=SpaceshipOptions)
    name = "spaceship"

    @property
    def observation(self) -> Box:
        """The ship's place in the room."""
        return Box(np.zeros(2, np.float32), np.full(2, self.options.room, np.float32))

    @property
    def action(self) -> Box:
        """The force of the ship's engine, clipped per component."""
        force = np.full(2, self.options.force, np.float32)
        return Box(-force, force)

    @property
    def control_step(self) -> float:
        """Time between two steps."""
        return self.options.dt

    def initial_state(self, key: Array, context: Array) -> SpaceshipState:
        """The ship rests at the start; nothing is random."""
        del key, context
        return SpaceshipState(jnp.asarray(self.options.start, jnp.float32), jnp.zeros((), jnp.int32))

    def observe(self, state: SpaceshipState) -> Array:
        """The ship's place, inside the room."""
        return jnp.clip(state.position, 0.0, self.options.room)

    def field(self, context: Array, position: Array) -> Array:
        """Force of the two charges on the ship, F_env [2]."""
        o = self.options
        charges = o.radius * jnp.stack([jnp.cos(context[0]), jnp.sin(context[0])])  # [2]
        away = position - jnp.asarray(o.charges, jnp.float32)  # [2 charges, 2]
        cubed = jnp.sum(away**2, axis=-1) ** 1.5
        return o.strength * jnp.sum((charges / (cubed + o.softening))[:, None] * away, axis=0)

    def transition(self, context: Array, state: SpaceshipState, action: Array) -> tuple[SpaceshipState, Array, Array]:
        """One step."""
        o = self.options
        if o.fixed_magnitude:
            force = o.force * action / jnp.maximum(jnp.linalg.norm(action), 1e-8)
        else:
            force = jnp.clip(action, -o.force, o.force)
        position = state.position + (force + self.field(context, state.position)) * o.dt**2 / 2
        time = state.time + 1
        reward, ended = self._outcome(position, time)
        return SpaceshipState(position, time), reward, ended

    def reward_and_done(self, before: Array, action: Array, after: Array, time: Array) -> tuple[Array, Array]:
        """Place and time are all that counts; a place outside of the room is seen, and judged, at its wall."""
        del before, action
        return self._outcome(after, time)

    def _outcome(self, position: Array, time: Array) -> tuple[Array, Array]:
        """Reward and end of the episode at a place; reward only where it ends."""
        o = self.options
        outside = jnp.any((position <= 0.0) | (position >= o.room))
        away = jnp.linalg.norm(position - jnp.asarray(o.charges, jnp.float32), axis=-1)
        ended = outside | jnp.any(away < o.capture) | (time >= o.horizon)
        distance = jnp.linalg.norm(position - jnp.asarray(o.door, jnp.float32))
        return jnp.where(ended, jnp.exp(-o.decay * distance), 0.0), ended
