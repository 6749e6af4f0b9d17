"""Gymnasium environments of the MuJoCo families, simulated by MuJoCo in C.

    gymnasium.make("pdvf/AntWind-v0", context=17, render_mode="rgb_array")
    gymnasium.make_vec("pdvf/Swimmer-v0", num_envs=3, context=[1, 17, {"angle": 1.0}])

Everything about contexts, resets and `info` is as for Spaceship (`families/gym.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pdvf.core.arrays import Array, Box
from pdvf.engines import MujocoCEngine
from pdvf.engines.gym_envs import Context, FamilyEnv, FamilyVectorEnv
from pdvf.engines.mujoco_c import BitState
from pdvf.engines.rendering import paint
from pdvf.families import AntLegs, AntWind, Swimmer
from pdvf.families.base import MujocoFamily, Split
from pdvf.families.options import AntLegsOptions, AntWindOptions, SwimmerOptions


@dataclass(frozen=True)
class Simulated:
    """A MuJoCo family as a native one: its physics is the C engine, one environment at a time.

    Many of them under `vmap` are still one call of MuJoCo.
    """

    family: MujocoFamily

    @property
    def name(self) -> str:
        """Name of the family."""
        return self.family.name

    @property
    def context_names(self) -> tuple[str, ...]:
        """Names of the context's numbers."""
        return self.family.context_names

    @property
    def observation(self) -> Box:
        """Bounds of the observation."""
        return self.family.observation

    @property
    def action(self) -> Box:
        """Bounds of the action."""
        return self.family.action

    @property
    def horizon(self) -> int:
        """Longest episode."""
        return self.family.horizon

    @property
    def probe_steps(self) -> int:
        """N_d."""
        return self.family.probe_steps

    def train(self, seed: int) -> Split:
        """Training environments."""
        return self.family.train(seed)

    def test(self, seed: int) -> Split:
        """Test environments."""
        return self.family.test(seed)

    def initial_state(self, key: Array, context: Array) -> BitState:
        """State at the start of an episode."""
        return _first(MujocoCEngine(self.family).reset(key[None], context[None])[0])

    def observe(self, state: BitState) -> Array:
        """Observation [o] of a state."""
        return self.family.observe(state.physics)

    def transition(self, context: Array, state: BitState, action: Array) -> tuple[BitState, Array, Array]:
        """State, reward and end of the task after one action [a]."""
        one = jax.tree.map(lambda x: x[None], (context, state, action))
        following, outcome = MujocoCEngine(self.family).step(*one)
        return _first(following), outcome.reward[0], outcome.terminated[0]


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[0], tree)


class MujocoEnv(FamilyEnv):
    """One environment of a MuJoCo family."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self,
        family: MujocoFamily,
        context: Context = 1,
        split_seed: int = 0,
        render_mode: str | None = None,
        width: int = 320,
        height: int = 240,
    ):
        def draw(hidden: np.ndarray, state: BitState, path: np.ndarray) -> np.ndarray:
            del path
            return paint(family, hidden, np.asarray(state.physics.qpos), (width, height))

        super().__init__(Simulated(family), context, split_seed=split_seed, draw=draw, render_mode=render_mode)


class SwimmerEnv(MujocoEnv):
    """Entry point of `gymnasium.make("pdvf/Swimmer-v0", context=...)`."""

    def __init__(self, context: Context = 1, options: SwimmerOptions | None = None, **more: Any):
        super().__init__(Swimmer(options or SwimmerOptions()), context, **more)


class AntWindEnv(MujocoEnv):
    """Entry point of `gymnasium.make("pdvf/AntWind-v0", context=...)`."""

    def __init__(self, context: Context = 1, options: AntWindOptions | None = None, **more: Any):
        super().__init__(AntWind(options or AntWindOptions()), context, **more)


class AntLegsEnv(MujocoEnv):
    """Entry point of `gymnasium.make("pdvf/AntLegs-v0", context=...)`."""

    def __init__(self, context: Context = 1, options: AntLegsOptions | None = None, **more: Any):
        super().__init__(AntLegs(options or AntLegsOptions()), context, **more)


def _many(family: Callable[[Any], MujocoFamily], usual: Callable[[], Any]) -> type[FamilyVectorEnv]:
    """The class of many environments of a family."""

    class MujocoVectorEnv(FamilyVectorEnv):
        """Entry point of `gymnasium.make_vec`."""

        def __init__(
            self,
            num_envs: int = 1,
            context: Context | Sequence[Context] = 1,
            options: Any = None,
            split_seed: int = 0,
        ):
            super().__init__(Simulated(family(options or usual())), num_envs, context, split_seed=split_seed)

    return MujocoVectorEnv


SwimmerVectorEnv = _many(Swimmer, SwimmerOptions)
AntWindVectorEnv = _many(AntWind, AntWindOptions)
AntLegsVectorEnv = _many(AntLegs, AntLegsOptions)
