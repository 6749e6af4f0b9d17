"""What varies: a family of environments that differ only in a hidden context (section 3.1 of the paper).

A family names its contexts, splits them into training and test environments, and says how long an episode is
and how many steps N_d may be spent on finding out which dynamics it is in. It does not simulate: an engine does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Box

State = Any  # a pytree; what it holds is the family's business
MjSpec = Any  # mujoco.MjSpec, which comes without types
MjModel = Any  # mujoco.MjModel
MjData = Any  # mujoco.MjData


class Outcome(NamedTuple):
    """What an agent sees of one step: observation [..., o], reward [...] and whether the task ended [...]."""

    observation: Array
    reward: Array
    terminated: Array


class Split(NamedTuple):
    """Environments of one split: their numbers as in the paper (from 1) and their contexts [n, c]."""

    numbers: tuple[int, ...]
    contexts: np.ndarray


@runtime_checkable
class Family(Protocol):
    """The hidden contexts of a family and the task they all share."""

    @property
    def name(self) -> str:
        """Name on the command line and in every table."""
        ...

    @property
    def context_names(self) -> tuple[str, ...]:
        """Names of the context's c numbers."""
        ...

    @property
    def observation(self) -> Box:
        """Bounds of the observation; the hidden context is never part of it."""
        ...

    @property
    def action(self) -> Box:
        """Bounds of the action; actions outside are clipped."""
        ...

    @property
    def horizon(self) -> int:
        """Longest episode, in steps."""
        ...

    @property
    def probe_steps(self) -> int:
        """N_d, the steps at the start of an episode from which the dynamics are inferred."""
        ...

    def train(self, seed: int) -> Split:
        """Training environments."""
        ...

    def test(self, seed: int) -> Split:
        """Test environments: only evaluation and the upper bound PPOenv may ask for these."""
        ...


class Timed:
    """The parts of a family that its options say."""

    options: Any

    @property
    def horizon(self) -> int:
        """Steps until an episode ends anyway."""
        return self.options.horizon

    @property
    def probe_steps(self) -> int:
        """N_d."""
        return self.options.probe_steps


@runtime_checkable
class TaskFamily(Family, Protocol):
    """A family whose task is a function of states, so that it can be asked about states that nobody simulated."""

    def observe(self, state: State, /) -> Array:
        """Observation [o] of a state."""
        ...

    def reward(self, before: State, after: State, action: Array, /) -> Array:
        """Reward [] of a step with this action [a], inside its bounds."""
        ...

    def terminated(self, before: State, after: State, action: Array, /) -> Array:
        """Whether the task ended [] with this step."""
        ...


class Dial(NamedTuple):
    """One number of a context that can be set by hand: its name, its range and its usual value."""

    name: str
    low: float
    high: float
    usual: float


@runtime_checkable
class DialledFamily(Family, Protocol):
    """A family that says how its contexts can be set by hand; those of others go over what their environments span."""

    @property
    def dials(self) -> tuple[Dial, ...]:
        """One for each number of a context [c]; more may follow, if the dynamics take contexts that are longer."""
        ...


@runtime_checkable
class DrawnFamily(Family, Protocol):
    """A family whose observation is a place in a plane, and who can draw what is there."""

    legend: Mapping[str, Mapping[str, Any]]
    """What the scene shows: words, and how Matplotlib draws a line of it."""

    def draw_scene(self, axes: Any, context: np.ndarray) -> None:
        """Draws the environment of a context [c] on Matplotlib's axes."""
        ...


@runtime_checkable
class GuardedFamily(Family, Protocol):
    """A family that can tell how near the end of an episode is, before it comes."""

    def danger(self, observation: Array) -> Array:
        """How near [] the end an observation [o] is: 0 as far from it as can be, 1 and more where the task ends."""
        ...


@runtime_checkable
class NativeFamily(Family, Protocol):
    """A family whose physics is JAX code for one environment; the native engine batches it."""

    def initial_state(self, key: Array, context: Array) -> State:
        """State at the start of an episode."""
        ...

    def observe(self, state: State) -> Array:
        """Observation [o] of a state."""
        ...

    def transition(self, context: Array, state: State, action: Array) -> tuple[State, Array, Array]:
        """State, reward and end of the task after one action [a]."""
        ...


@runtime_checkable
class HostFamily(Family, Protocol):
    """A family whose environments are Python objects with Gymnasium's `reset` and `step`."""

    def make(self, context: dict[str, float]) -> Any:
        """A fresh gymnasium.Env for a context by name."""
        ...


class Physics(NamedTuple):
    """What the task sees of a MuJoCo model: positions [nq] and velocities [nv]."""

    qpos: Array
    qvel: Array


class Simulated(Timed):
    """The parts of a MuJoCo family that its options say, and what it observes: everything but the place."""

    arrow: str | None = None
    """What pictures show as an arrow, if the hidden context is a velocity."""

    @property
    def frame_skip(self) -> int:
        """Steps of the simulator in one step of the agent."""
        return self.options.frame_skip

    @property
    def control_step(self) -> float:
        """Seconds of one step of the agent."""
        return self.options.timestep * self.options.frame_skip

    def observe(self, physics: Physics) -> Array:
        """All positions but x and y, then velocities [nq + nv - 2]."""
        return jnp.concatenate([physics.qpos[2:], physics.qvel])


@runtime_checkable
class MujocoFamily(TaskFamily, Protocol):
    """A family whose environments are variants of one MuJoCo model; every MuJoCo engine simulates it.

    A context may change any number of the model, but not which bodies, joints, geoms and actuators it has, nor the
    pose it rests in. Task functions are JAX code for one environment; they take states as `Physics`.
    """

    @property
    def frame_skip(self) -> int:
        """Steps of the simulator in one step of the agent."""
        ...

    def base(self) -> MjSpec:
        """A fresh specification of the model that the variants have in common."""
        ...

    def edit(self, spec: MjSpec, context: np.ndarray) -> None:
        """Changes a specification into the variant of a context [c]."""
        ...

    def start(self, key: Array, rest: Physics) -> Physics:
        """A state at the start of an episode, given the model's rest pose and velocities of 0."""
        ...
