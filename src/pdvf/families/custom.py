"""Families of the user's own: what varies is a dictionary of named numbers.

    from pdvf.families import GymFamily

    my_family = GymFamily(
        name="pendulum",
        make_env=lambda context: make_pendulum(**context),
        train_contexts=[{"gravity": 8.0, "mass": 0.9}, ...],
        test_contexts=[{"gravity": 9.0, "mass": 1.1}, ...],
        horizon=200,
        probe_steps=5,
    )

Then `pdvf run mypackage.mymodule:my_family --preset quick`. `GymFamily` takes any environment of Gymnasium;
`MujocoModel` takes a MuJoCo model, which every MuJoCo engine simulates (docs/your_own_family.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Box
from pdvf.core.validation import ConfigError, episode, require
from pdvf.families import loading as targets
from pdvf.families.base import MjSpec, Physics, Split
from pdvf.families.env_pool import STEP_TIMEOUT, EnvPool
from pdvf.families.mujoco import base_model, call_user, never, noisy_start

Context = Mapping[str, float]


@dataclass(frozen=True)
class CustomOptions:
    """What a family of the user's own says of itself; not for the command line."""

    horizon: int
    """Steps after which an episode ends; the family says it."""
    probe_steps: int
    """N_d; the family says it."""

    def __post_init__(self) -> None:
        episode(self)


def by_name(names: Sequence[str], context: np.ndarray) -> dict[str, float]:
    """A context [c] by name; each number is the shortest one that is the same in float32."""
    return {name: float(str(np.float32(x))) for name, x in zip(names, context, strict=True)}


class NamedContexts:
    """The environments of a family that lists its contexts by name."""

    train_contexts: Sequence[Context]
    test_contexts: Sequence[Context]
    horizon: int
    probe_steps: int

    def __post_init__(self) -> None:
        require(len(self.train_contexts) > 1, "train_contexts", self.train_contexts, "at least two contexts")
        require(bool(self.test_contexts), "test_contexts", self.test_contexts, "at least one context")
        names = set(self.context_names)
        for context in (*self.train_contexts, *self.test_contexts):
            require(set(context) == names, "context", dict(context), f"one with the names {sorted(names)}")
        both = [c for c in self._rows(self.test_contexts).tolist() if c in self._rows(self.train_contexts).tolist()]
        require(not both, "test_contexts", both, "none that is also in train_contexts: a test must be of something new")
        episode(self)

    @property
    def context_names(self) -> tuple[str, ...]:
        """Names of the context's numbers, as the first training context has them."""
        return tuple(self.train_contexts[0])

    def train(self, seed: int) -> Split:
        """Training environments, numbered from 1."""
        return Split(tuple(range(1, len(self.train_contexts) + 1)), self._rows(self.train_contexts))

    def test(self, seed: int) -> Split:
        """Test environments, numbered after those of training."""
        first = len(self.train_contexts) + 1
        return Split(tuple(range(first, first + len(self.test_contexts))), self._rows(self.test_contexts))

    def named(self, context: np.ndarray) -> dict[str, float]:
        """A context [c] by name, with the numbers that the user gave."""
        own = self._given.get(np.asarray(context, np.float32).tobytes())
        return by_name(self.context_names, context) if own is None else dict(own)

    @cached_property
    def _given(self) -> dict[bytes, Context]:
        contexts = (*self.train_contexts, *self.test_contexts)
        return {row.tobytes(): context for row, context in zip(self._rows(contexts), contexts, strict=True)}

    def _rows(self, contexts: Sequence[Context]) -> np.ndarray:
        return np.array([[float(c[name]) for name in self.context_names] for c in contexts], np.float32)


@dataclass(frozen=True, eq=False)
class GymFamily(NamedContexts):
    """Environments of Gymnasium that differ in named numbers."""

    name: str
    """Name in tables and reports."""
    make_env: Callable[[dict[str, float]], Any]
    """From a context to a gymnasium.Env; called in worker processes, often."""
    train_contexts: Sequence[Context]
    """Contexts to learn in, two at least: dictionaries of the same named numbers."""
    test_contexts: Sequence[Context]
    """Contexts to be judged in, one at least; none of them in `train_contexts`."""
    horizon: int
    """Steps after which an episode ends; the environment itself may end it earlier."""
    probe_steps: int = 1
    """N_d: steps at the start of an episode from which the dynamics are inferred."""

    step_timeout: float = STEP_TIMEOUT
    """Seconds that `make_env`, `reset` or `step` may take."""
    workers: int | None = None
    """Processes that environments are stepped in; by default one a core, fewer where steps are cheap."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.step_timeout > 0, "step_timeout", self.step_timeout, "seconds above 0")
        require(self.workers is None or self.workers > 0, "workers", self.workers, "None or a number above 0")

    @property
    def observation(self) -> Box:
        """Bounds of the observation, flat."""
        return self._spaces[0]

    @property
    def action(self) -> Box:
        """Bounds of the action, flat."""
        return self._spaces[1]

    def make(self, context: dict[str, float]) -> Any:
        """An environment."""
        return self.make_env(context)

    @cached_property
    def pool(self) -> EnvPool:
        """Its environments, in worker processes."""
        return EnvPool(self.name, self.make_env, self.named, targets.origin(self), self.step_timeout, self.workers)

    @cached_property
    def _spaces(self) -> tuple[Box, Box]:
        observation, action = self.pool.spaces(self._rows(self.train_contexts[:1])[0].tobytes())
        return _box("observation", *observation), _box("action", *action)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without the processes


def positions_and_velocities(physics: Physics) -> Array:
    """Everything MuJoCo calls a position, then all velocities."""
    return jnp.concatenate([physics.qpos, physics.qvel])


@dataclass(frozen=True, eq=False)
class MujocoModel(NamedContexts):
    """Variants of one MuJoCo model; the task is JAX code for one environment."""

    name: str
    """Name in tables and reports."""
    model: Callable[[], MjSpec]
    """Makes a fresh mujoco.MjSpec of the model that all contexts share."""
    edit_model: Callable[[MjSpec, dict[str, float]], None]
    """Changes numbers of a specification for a context by name; bodies, joints, geoms and motors stay what they are."""
    reward_of: Callable[[Physics, Physics, Array], Array]
    """Reward [] from positions and velocities before and after a step, and the action [a]."""
    train_contexts: Sequence[Context]
    """Contexts to learn in, two at least: dictionaries of the same named numbers."""
    test_contexts: Sequence[Context]
    """Contexts to be judged in, one at least; none of them in `train_contexts`."""
    horizon: int
    """Steps after which an episode ends."""
    probe_steps: int = 1
    """N_d: steps at the start of an episode from which the dynamics are inferred."""
    frame_skip: int = 5
    """Steps of the simulator in one step of the agent."""
    noise: float = 0.1
    """Positions and velocities at the start are drawn from their rest values +- this."""
    observe_with: Callable[[Physics], Array] = positions_and_velocities
    """Observation [o] of a state."""
    ended: Callable[[Physics, Physics, Array], Array] = never
    """Whether a step ended the task []."""

    @property
    def observation(self) -> Box:
        """No bounds."""
        compiled = base_model(self)
        sizes: Any = tuple(jax.ShapeDtypeStruct((n,), "float32") for n in (compiled.nq, compiled.nv))
        return Box.symmetric(jax.eval_shape(self.observe, Physics(*sizes)).shape)

    @property
    def action(self) -> Box:
        """The motors' control ranges, which the model must have."""
        compiled = base_model(self)
        if not compiled.actuator_ctrllimited.all():
            raise ConfigError(
                f"{self.name} has motors without ctrlrange, expected bounds for all: set them in the model"
            )
        low, high = np.asarray(compiled.actuator_ctrlrange, np.float32).T
        return Box(low, high)

    @property
    def control_step(self) -> float:
        """Seconds of one step of the agent."""
        return float(base_model(self).opt.timestep) * self.frame_skip

    def base(self) -> MjSpec:
        """The model that all contexts share."""
        return self.model()

    def edit(self, spec: MjSpec, context: np.ndarray) -> None:
        """The variant of a context."""
        self.edit_model(spec, self.named(context))

    def start(self, key: Array, rest: Physics) -> Physics:
        """Rest, with uniform noise on everything."""
        return noisy_start(rest, self.noise, key)

    def observe(self, physics: Physics) -> Array:
        """Observation [o] of a state."""
        return call_user(self, "observe_with", self.observe_with, physics)

    def reward(self, before: Physics, after: Physics, action: Array) -> Array:
        """Reward [] of a step."""
        return call_user(self, "reward_of", self.reward_of, before, after, action)

    def terminated(self, before: Physics, after: Physics, action: Array) -> Array:
        """Whether the task ended [] with this step."""
        return call_user(self, "ended", self.ended, before, after, action)


def _box(what: str, space: str, low: np.ndarray | None, high: np.ndarray | None) -> Box:
    if low is None or high is None:
        advice = {
            "observation": "wrap it with gymnasium.wrappers.FlattenObservation",
            "action": "PD-VF needs continuous actions",
        }
        raise ConfigError(f"{what} space is {space}, expected a Box with one axis: {advice[what]}")
    if what == "action" and not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError(
            f"action space is {space}, expected finite bounds: wrap it with "
            "gymnasium.wrappers.TransformAction and a Box of finite bounds"
        )
    return Box(low, high)
