"""Spaceship (section 4.2 and appendix D.1): steer a unit charge through a room with two hidden charges to a door.

The hidden context is an angle d; the two charges are q = radius * (cos d, sin d). A step moves the ship by

    x <- x + (F_agent + F_env(x; d)) * dt^2 / 2,     F_env(x; d) = k * sum_i q_i (x - x_i) / (|x - x_i|^3 + eps)

There is no velocity. The episode ends when the ship leaves the room (through a wall or the door), comes within
`capture` of a charge, or has made `horizon` steps; only then is there a reward, exp(-decay * distance to the door).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tyro.conf import Fixed

from pdvf.core.arrays import Array, Box
from pdvf.core.validation import circle, positive, require
from pdvf.families.base import Timed
from pdvf.families.circle import CircleOptions, OnCircle, radius_of
from pdvf.families.presets import QUICK_MODEL, SMOKE
from pdvf.families.registry import FamilySpec

INK, MUTED, FIELD = "#1f2328", "#6a737d", "#c3c9cf"
"""Colours of the pictures."""


@dataclass(frozen=True)
class SpaceshipOptions(CircleOptions):
    """Constants of the Spaceship domain; the defaults are the paper's (see docs/paper_map.md)."""

    room: Fixed[float] = 5.0
    """Side of the square room."""
    start: Fixed[tuple[float, float]] = (2.5, 0.2)
    """Where the ship starts."""
    door: Fixed[tuple[float, float]] = (2.5, 5.0)
    """Centre of the door."""
    door_width: Fixed[float] = 1.0
    """Width of the door; drawn only, since the reward depends on the distance to its centre."""
    charges: Fixed[tuple[tuple[float, float], tuple[float, float]]] = ((0.0, 0.0), (0.0, 5.0))
    """Where the two fixed charges are."""
    radius: float = 1.5
    """Radius of the circle of dynamics: the charges are radius * (cos d, sin d)."""
    strength: Fixed[float] = 5.0
    """Factor of the electric force."""
    softening: Fixed[float] = 0.1
    """Added to the cubed distance in the electric force."""
    capture: Fixed[float] = 0.2
    """The episode ends closer than this to a charge."""
    force: Fixed[float] = 3.0
    """Largest force of the ship's engine, per component."""
    fixed_magnitude: Fixed[bool] = False
    """Scale every action to the largest force, as the paper's text says, instead of clipping it."""
    dt: Fixed[float] = 0.3
    """Time between two steps."""
    decay: float = 3.0
    """The reward at the end is exp(-decay * distance to the door)."""
    horizon: int = 50
    """Steps after which an episode ends."""
    probe_steps: int = 1
    """N_d: steps at the start of an episode from which the dynamics are inferred."""

    def __post_init__(self) -> None:
        positive(self, "room", "radius", "strength", "softening", "force", "dt", "decay", "horizon", "door_width")
        require(self.capture >= 0, "environment.capture", self.capture, "at least 0")
        require(
            all(0 < x < self.room for x in self.start),
            "environment.start",
            self.start,
            f"a place inside the room of side {self.room}",
        )
        circle(self)


class SpaceshipState(NamedTuple):
    """Position [2] and steps made []."""

    position: Array
    time: Array


@dataclass(frozen=True)
class Spaceship(OnCircle, Timed):
    """The Spaceship family; every constant is an option with the paper's default."""

    options: SpaceshipOptions = field(default_factory=SpaceshipOptions)
    name = "spaceship"
    dial_names = ("angle of the charges", "size of the charges")

    @property
    def observation(self) -> Box:
        """The ship's place in the room."""
        return Box(np.zeros(2, np.float32), np.full(2, self.options.room, np.float32))

    @property
    def action(self) -> Box:
        """The force of the ship's engine, clipped per component."""
        return Box.symmetric(2, self.options.force)

    @property
    def control_step(self) -> float:
        """Time between two steps."""
        return self.options.dt

    def initial_state(self, key: Array, context: Array) -> SpaceshipState:
        """The ship rests at the start; nothing is random."""
        return SpaceshipState(jnp.asarray(self.options.start, jnp.float32), jnp.zeros((), jnp.int32))

    def observe(self, state: SpaceshipState) -> Array:
        """The ship's place, inside the room."""
        return jnp.clip(state.position, 0.0, self.options.room)

    def field(self, context: Array, position: Array) -> Array:
        """Force of the two charges on the ship, F_env [2]."""
        o = self.options
        charges = radius_of(o.radius, context) * jnp.stack([jnp.cos(context[0]), jnp.sin(context[0])])  # [2]
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
        after = SpaceshipState(position, state.time + 1)
        return after, self.reward(state, after, action), self.terminated(state, after, action)

    def reward(self, before: SpaceshipState, after: SpaceshipState, action: Array) -> Array:
        """How near the door the episode ends; nothing before."""
        o = self.options
        distance = jnp.linalg.norm(after.position - jnp.asarray(o.door, jnp.float32))
        return jnp.where(self.terminated(before, after, action), jnp.exp(-o.decay * distance), 0.0)

    def terminated(self, before: SpaceshipState, after: SpaceshipState, action: Array) -> Array:
        """Whether the ship is outside, at a charge, or its time is up."""
        o = self.options
        outside = jnp.any((after.position <= 0.0) | (after.position >= o.room))
        away = jnp.linalg.norm(after.position - jnp.asarray(o.charges, jnp.float32), axis=-1)
        return outside | jnp.any(away < o.capture) | (after.time >= o.horizon)

    legend = MappingProxyType(
        {
            "door": {"color": INK, "linewidth": 4},
            "charge that pushes": {"color": INK, "marker": "$+$", "linestyle": ""},
            "charge that pulls": {"color": INK, "marker": "$-$", "linestyle": ""},
            "force field": {"color": FIELD, "linewidth": 1.2},
        }
    )

    def draw_scene(self, axes: Any, context: np.ndarray) -> None:
        """The room: force field, charges, door and start."""
        o = self.options
        line = np.linspace(0.0, o.room, 36)
        grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
        hidden = jnp.asarray(context, jnp.float32)
        force = jax.vmap(lambda x: self.field(hidden, x))(jnp.asarray(grid, jnp.float32))
        u, v = np.asarray(force).reshape(len(line), len(line), 2).transpose(2, 0, 1)
        width = 0.4 + 1.1 * np.clip(np.log1p(np.hypot(u, v)) / 1.5, 0, 1)
        axes.streamplot(line, line, u, v, color=FIELD, linewidth=width, arrowsize=0.7, density=0.8, zorder=1)
        charges = radius_of(o.radius, context) * np.array([np.cos(context[0]), np.sin(context[0])])
        for place, charge in zip(o.charges, charges.tolist(), strict=True):
            share = abs(charge) / o.radius
            fill, sign = (INK, "white") if charge > 0 else ("white", INK)
            size = 30 + 330 * share
            axes.scatter(*place, s=size, color=fill, edgecolors=INK, linewidths=1.2, zorder=7, clip_on=False)
            if share > 0.05:
                words = {"ha": "center", "va": "center_baseline", "fontsize": 10, "fontweight": "bold"}
                axes.text(*place, "+" if charge > 0 else "\N{MINUS SIGN}", color=sign, zorder=8, **words)
        door = [o.door[0] - o.door_width / 2, o.door[0] + o.door_width / 2]
        axes.plot(door, [o.door[1]] * 2, color=INK, linewidth=5, solid_capstyle="butt", zorder=3, clip_on=False)
        axes.plot(*o.start, marker="s", color="white", markeredgecolor=INK, markersize=6, zorder=3)
        axes.set(xlim=(0, o.room), ylim=(0, o.room), aspect="equal", xticks=[], yticks=[])
        axes.spines[:].set_color(MUTED)


FAMILY = FamilySpec(
    Spaceship,
    SpaceshipOptions,
    "a charged ship, two hidden charges (20 environments, 5 for testing)",
    {
        "common": {
            "value.power": 8.0,
            "value.high_return": 0.5,
        },
        "quick": {
            "policy_seeds": 1,
            "model_seeds": 1,
            "ppo.steps": 393_216,
            "ppo.rollout": 64,
            "ppo.epochs": 3,
            "ppo.minibatches": 8,
            "ppo.learning_rate": 1e-3,
            "collect.episodes": 4,
            "dynamics.epochs": 60,
            "dynamics.batch": 256,
            "dynamics.learning_rate": 3e-3,
            "policy.epochs": 40,
            "policy.batch": 64,
            "policy.learning_rate": 2e-3,
            "policy.set_size": 16,
            "value.epochs": 8,
            "value.stages": 12,
            "value.stage_epochs": 6,
            "value.batch": 512,
            "value.decoder_rounds": 4,
            "value.decoder_epochs": 80,
            **QUICK_MODEL,
        },
        "smoke": {
            **SMOKE,
            "ppo.steps": 16_384,
            "policy.epochs": 10,
            "value.interpolations": 150,
            "value.uniform": 50,
            "value.probes": 2,
            "value.decoder_epochs": 5,
        },
        "equal": {"baselines.environments": 64, "baselines.rollout": 50},  # whole episodes
    },
)
