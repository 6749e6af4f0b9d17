"""Constants of the families; the defaults are the paper's (see docs/paper_map.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pdvf.core.validation import circle, episode, positive, require


@dataclass(frozen=True)
class CircleOptions:
    """Environments on a circle of dynamics."""

    environments: int = 20
    """Environments on the circle of dynamics."""
    train_environments: int = 15
    """The first so many are for training, the rest for testing."""
    sampling: Literal["grid", "interval"] = "grid"
    """Angle of environment i: (i - 1) * 2 pi / environments, or drawn uniformly from there to the next."""


@dataclass(frozen=True)
class SpaceshipOptions(CircleOptions):
    """Constants of the Spaceship domain; the defaults are the paper's (see docs/paper_map.md)."""

    room: float = 5.0
    """Side of the square room."""
    start: tuple[float, float] = (2.5, 0.2)
    """Where the ship starts."""
    door: tuple[float, float] = (2.5, 5.0)
    """Centre of the door."""
    door_width: float = 1.0
    """Width of the door; drawn only, since the reward depends on the distance to its centre."""
    charges: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 0.0), (0.0, 5.0))
    """Where the two fixed charges are."""
    radius: float = 1.5
    """Radius of the circle of dynamics: the charges are radius * (cos d, sin d)."""
    strength: float = 5.0
    """Factor of the electric force."""
    softening: float = 0.1
    """Added to the cubed distance in the electric force."""
    capture: float = 0.2
    """The episode ends closer than this to a charge."""
    force: float = 3.0
    """Largest force of the ship's engine, per component."""
    fixed_magnitude: bool = False
    """Scale every action to the largest force, as the paper's text says, instead of clipping it."""
    dt: float = 0.3
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


@dataclass(frozen=True)
class SwimmerOptions(CircleOptions):
    """Constants of Swimmer in a current: Gymnasium's v3 task with a moving fluid."""

    radius: float = 0.1
    """Speed of the current, radius * (cos d, sin d)."""
    density: float = 4000.0
    """Density of the fluid."""
    viscosity: float = 0.1
    """Viscosity of the fluid."""
    timestep: float = 0.01
    """Seconds of one step of the simulator."""
    frame_skip: int = 4
    """Steps of the simulator in one step of the agent."""
    forward_reward: float = 1.0
    """Weight of the velocity along x."""
    control_cost: float = 1e-4
    """Weight of the squared action."""
    noise: float = 0.1
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
class AntOptions:
    """Constants that both Ant families share: Gymnasium's v3 task without contact forces."""

    timestep: float = 0.01
    """Seconds of one step of the simulator."""
    frame_skip: int = 5
    """Steps of the simulator in one step of the agent."""
    healthy_reward: float = 1.0
    """Reward of every step."""
    control_cost: float = 0.5
    """Weight of the squared action."""
    healthy_height: tuple[float, float] = (0.2, 1.0)
    """The episode ends when the torso is lower or higher than this."""
    noise: float = 0.1
    """At the start positions are rest +- this, velocities normal with this standard deviation."""
    cone: Literal["pyramidal", "elliptic"] = "pyramidal"
    """Friction cone; MuJoCo in C and MJX orient the pyramid differently and agree on the ellipse."""
    horizon: int = 256
    """Steps after which an episode ends."""

    def __post_init__(self) -> None:
        positive(self, "timestep", "frame_skip", "horizon")
        require(self.noise >= 0, "environment.noise", self.noise, "at least 0")
        require(self.cone in ("pyramidal", "elliptic"), "environment.cone", self.cone, "'pyramidal' or 'elliptic'")
        low, high = self.healthy_height
        require(low < high, "environment.healthy_height", self.healthy_height, "two heights, the lower first")


@dataclass(frozen=True)
class AntWindOptions(AntOptions, CircleOptions):
    """Constants of Ant in a wind."""

    radius: float = 4.0
    """Speed of the wind, radius * (cos d, sin d)."""
    density: float = 0.0
    """Density of the air."""
    viscosity: float = 0.05
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
class AntLegsOptions(AntOptions):
    """Constants of Ant with other legs."""

    legs: tuple[float, float, float] = (0.1, 0.2, 0.3)
    """Short, medium and long upper legs, as the model writes them: what a leg spans along x and along y."""
    ankles: tuple[float, float, float] = (0.2, 0.4, 0.6)
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


@dataclass(frozen=True)
class OwnOptions:
    """What a family of the user's own says of itself; not for the command line."""

    horizon: int
    """Steps after which an episode ends; the family says it."""
    probe_steps: int
    """N_d; the family says it."""

    def __post_init__(self) -> None:
        episode(self)
