"""Gymnasium interface: any native or MuJoCo family as an environment, and many of its environments as one vector.

    gymnasium.make("pdvf:pdvf/AntWind-v0", context=17, render_mode="rgb_array")
    gymnasium.make_vec("pdvf:pdvf/Spaceship-v0", num_envs=3, context=[1, 17, {"angle": 1.0}])

Observations and actions are in physical units. The hidden context is in `info`, never in the observation. MuJoCo
families are simulated by MuJoCo in C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pdvf.core.arrays import Array, Box
from pdvf.engines.mujoco_c import MujocoCEngine
from pdvf.engines.native import NativeEngine
from pdvf.engines.rendering import paint_all
from pdvf.engines.rollout import where
from pdvf.families.base import DrawnFamily, Family, MujocoFamily, NativeFamily, State
from pdvf.families.registry import make_family

Context = int | Mapping[str, float]
"""An environment's number as in the paper, or a hidden context by name."""
Draw = Callable[[np.ndarray, State, np.ndarray], np.ndarray]
"""From a context [c], a state and the observations so far [t, o] to a picture [height, width, 3] of bytes."""


class Compiled(NamedTuple):
    """A family's functions, compiled once: for one environment, and for n."""

    reset: Callable[..., tuple[State, Array]]
    step: Callable[..., tuple[State, Array, Array, Array]]
    reset_many: Callable[..., tuple[State, Array]]
    step_many: Callable[..., tuple[State, Array, Array, Array, Array, Array]]


@lru_cache(maxsize=64)
def compiled_functions(family: NativeFamily | MujocoFamily) -> Compiled:
    """The functions of a family on its engine; the same for the same family."""
    engine = MujocoCEngine(family) if isinstance(family, MujocoFamily) else NativeEngine(family)

    def one(function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of n environments as one of a single environment."""
        row = lambda *arguments: function(*jax.tree.map(lambda x: x[None], arguments))  # noqa: E731
        return jax.jit(lambda *arguments: jax.tree.map(lambda x: x[0], row(*arguments)))

    def reset(contexts: Array, seeds: Array) -> tuple[State, Array]:
        return engine.reset(jax.vmap(jax.random.key)(seeds), contexts)

    def step(contexts: Array, states: State, actions: Array) -> tuple[State, Array, Array, Array]:
        states, outcome = engine.step(contexts, states, actions)
        return states, outcome.observation, outcome.reward, outcome.terminated

    def step_many(contexts: Array, states: State, times: Array, over: Array, seeds: Array, actions: Array):
        """Steps the environments that go on and restarts those whose episode is over [n]."""
        states, observations, rewards, terminated = step(contexts, states, actions)
        states, observations = jax.tree.map(partial(where, over), reset(contexts, seeds), (states, observations))
        times = jnp.where(over, 0, times + 1)
        terminated = terminated & ~over
        truncated = (times >= family.horizon) & ~terminated
        return states, times, observations, jnp.where(over, 0.0, rewards), terminated, truncated

    return Compiled(one(reset), one(step), jax.jit(reset), jax.jit(step_many))


class FamilyEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One environment of a family.

    An episode is `terminated` when the family says so and `truncated` when the horizon comes before that.
    `split_seed` is the seed of the splits, for families that draw the contexts of their environments.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 (Gymnasium's own)

    def __init__(
        self,
        family: NativeFamily | MujocoFamily,
        context: Context,
        *,
        split_seed: int = 0,
        draw: Draw | None = None,
        render_mode: str | None = None,
    ):
        modes = self.metadata["render_modes"]
        if render_mode is not None and (draw is None or render_mode not in modes):
            raise ValueError(f"render_mode is {render_mode!r}, expected None or one of {modes}; leave it out")
        if isinstance(family, MujocoFamily):
            self.metadata = {**self.metadata, "render_fps": 20}
        self.family = family
        self.observation_space, self.action_space = _space(family.observation), _space(family.action)
        self.render_mode = render_mode
        self._draw = draw
        self._number, self._context = _resolve(family, context, split_seed)
        self._state: State = None
        self._time = 0
        self._over = True
        self._path: list[np.ndarray] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode."""
        _reject(options)
        super().reset(seed=seed)
        self._state, observed = compiled_functions(self.family).reset(self._context, _draw_seed(self.np_random))
        self._time, self._over = 0, False
        observation = np.array(observed)
        self._path = [observation.copy()]
        return observation, self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step; actions outside their bounds are the family's business (it clips them)."""
        if self._over:
            raise gymnasium.error.ResetNeeded(
                "step was called before reset or after the end of the episode; call reset first"
            )
        action = _checked(action, (self.family.action.size,))
        self._state, observed, reward, ended = compiled_functions(self.family).step(self._context, self._state, action)
        self._time += 1
        terminated = bool(ended)
        truncated = self._time >= self.family.horizon and not terminated
        self._over = terminated or truncated
        observation = np.array(observed)
        if self.render_mode is not None:
            self._path.append(observation.copy())
        return observation, float(reward), terminated, truncated, self._info()

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The picture [height, width, 3] that the render mode asks for."""
        if self._draw is None or self.render_mode is None:
            return None
        if not self._path:
            raise gymnasium.error.ResetNeeded("render was called before reset; call reset first")
        return self._draw(self._context, self._state, np.stack(self._path))

    def _info(self) -> dict[str, Any]:
        values = zip(self.family.context_names, self._context, strict=True)
        return {"context": {name: float(value) for name, value in values}, "environment": self._number}


class FamilyVectorEnv(gymnasium.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Environments of a family, each with its own context, stepped by one compiled call.

    The step after the end of an episode ignores the action and starts the next one. Where a context was given
    by name, `info` has `environment` 0 and `_environment` false.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's own declaration)
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        family: NativeFamily | MujocoFamily,
        num_envs: int,
        context: Context | Sequence[Context],
        *,
        split_seed: int = 0,
    ):
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}, expected a whole number of at least 1")
        given = list(context) if isinstance(context, list | tuple | np.ndarray) else [context] * num_envs
        if len(given) != num_envs:
            raise ValueError(
                f"context has {len(given)} entries, expected num_envs = {num_envs}; give one for each "
                "environment, or a single context for all of them"
            )
        self.family = family
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = (
            _space(family.observation),
            _space(family.action),
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        resolved = [_resolve(family, one, split_seed) for one in given]
        self._numbers = np.array([number or 0 for number, _ in resolved])
        self._numbered = np.array([number is not None for number, _ in resolved])
        self._contexts = np.stack([one for _, one in resolved])
        self._states: State = None
        self._times = np.zeros(num_envs, np.int32)
        self._over = np.zeros(num_envs, bool)
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts all episodes; a seed s means s, s + 1, ... as in Gymnasium's own vector environments."""
        _reject(options)
        super().reset(seed=seed if isinstance(seed, int) else None)
        for i, one in enumerate(_seeds(seed, self.num_envs)):
            if one is not None:
                self._generators[i] = seeding.np_random(one)[0]
        seeds = np.array([_draw_seed(generator) for generator in self._generators])
        self._states, observations = compiled_functions(self.family).reset_many(self._contexts, seeds)
        self._times = np.zeros(self.num_envs, np.int32)
        self._over = np.zeros(self.num_envs, bool)
        return np.array(observations), self._info()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every environment, or the start of its next episode."""
        if self._states is None:
            raise gymnasium.error.ResetNeeded("step was called before reset; call reset first")
        actions = _checked(actions, (self.num_envs, self.family.action.size))
        seeds = np.zeros(self.num_envs, np.uint32)
        for i in np.flatnonzero(self._over):
            seeds[i] = _draw_seed(self._generators[i])
        self._states, self._times, observations, rewards, terminated, truncated = compiled_functions(
            self.family
        ).step_many(self._contexts, self._states, self._times, self._over, seeds, actions)
        terminated, truncated = np.array(terminated), np.array(truncated)
        self._over = terminated | truncated
        return np.array(observations), np.array(rewards, np.float64), terminated, truncated, self._info()

    def _info(self) -> dict[str, Any]:
        context: dict[str, np.ndarray] = {}
        for i, name in enumerate(self.family.context_names):
            context[name] = self._contexts[:, i].astype(np.float64)
            context[f"_{name}"] = np.ones(self.num_envs, bool)
        return {
            "context": context,
            "_context": np.ones(self.num_envs, bool),
            "environment": self._numbers.copy(),
            "_environment": self._numbered.copy(),
        }


def make_env(family: str, context: Context = 1, options: Any = None, **more: Any) -> FamilyEnv:
    """Entry point of `gymnasium.make`: one environment of a built-in family, with other options if they are given.

    `context` is the number of one of its environments, or numbers by name. `more` is as for `env_of`.
    """
    made: Any = make_family(family, options)
    return env_of(made, context, **more)


def env_of(family: NativeFamily | MujocoFamily, context: Context = 1, **more: Any) -> FamilyEnv:
    """One environment of a native or a MuJoCo family, which has pictures if the family can be drawn.

    `more` is as for `FamilyEnv`; families of MuJoCo also take `width` and `height` of the pictures.
    """
    draw = None
    if isinstance(family, MujocoFamily):
        draw = _photograph(family, (more.pop("width", 320), more.pop("height", 240)))
    elif isinstance(family, DrawnFamily):
        draw = _frame(family)
    return FamilyEnv(family, context, draw=draw, **more)


def make_vector_env(
    family: str,
    num_envs: int = 1,
    context: Context | Sequence[Context] = 1,
    options: Any = None,
    split_seed: int = 0,
) -> FamilyVectorEnv:
    """Entry point of `gymnasium.make_vec`: several environments of a built-in family, a context for all or for each."""
    made = make_family(family, options)
    assert isinstance(made, NativeFamily | MujocoFamily)
    return FamilyVectorEnv(made, num_envs, context, split_seed=split_seed)


def _photograph(family: MujocoFamily, size: tuple[int, int]) -> Draw:
    """A picture [height, width, 3] of the model as it stands."""
    return lambda context, state, path: paint_all(family, context, np.asarray(state.physics.qpos)[None], size)[0]


def _frame(family: DrawnFamily) -> Draw:
    """A picture [320, 320, 3] of a path [t, 2] in the family's scene."""

    def draw(context: np.ndarray, state: State, path: np.ndarray) -> np.ndarray:
        figure = Figure(figsize=(4, 4), dpi=80)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes((0.02, 0.02, 0.96, 0.96))
        family.draw_scene(axes, context)
        axes.plot(*path.T, color="black", linewidth=1.5, marker=".", markersize=4)
        axes.plot(*path[-1], color="black", marker="^", markersize=10)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()

    return draw


def _space(box: Box) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(box.low.astype(np.float32), box.high.astype(np.float32), dtype=np.float32)


def _resolve(family: Family, context: Any, split_seed: int) -> tuple[int | None, np.ndarray]:
    """Number, if it has one, and numbers [c] of a context."""
    splits = (family.train(split_seed), family.test(split_seed))
    numbered = {n: row for split in splits for n, row in zip(split.numbers, split.contexts, strict=True)}
    names = family.context_names
    if isinstance(context, Mapping):
        if set(context) == set(names) and all(_is_finite(context[name]) for name in names):
            return None, np.array([context[name] for name in names], np.float32)
    elif isinstance(context, Integral) and not isinstance(context, bool) and int(context) in numbered:
        return int(context), np.array(numbered[int(context)], np.float32)
    raise ValueError(
        f"context is {context!r}, expected the number of an environment, a whole number from {min(numbered)} "
        f"to {max(numbered)}, or finite numbers by name for exactly {list(names)}; pass for example "
        f"context={min(numbered)} or context={dict.fromkeys(names, 0.0)}"
    )


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _checked(action: Any, shape: tuple[int, ...]) -> np.ndarray:
    action = np.asarray(action, np.float32)
    if action.shape != shape:
        raise ValueError(f"the action has shape {action.shape}, expected {shape}; see action_space")
    if not np.all(np.isfinite(action)):
        raise ValueError(f"the action is {action}, expected finite numbers; check what computed it")
    return action


def _reject(options: dict[str, Any] | None) -> None:
    if options:
        raise ValueError(f"reset was given options {options}, but it takes none; leave them out")


def _draw_seed(generator: np.random.Generator) -> np.uint32:
    return generator.integers(2**32, dtype=np.uint32)


def _seeds(seed: int | Sequence[int | None] | None, n: int) -> Sequence[int | None]:
    if seed is None:
        return [None] * n
    if isinstance(seed, int):
        return [seed + i for i in range(n)]
    if len(seed) != n:
        raise ValueError(f"seed has {len(seed)} entries, expected num_envs = {n}; give one for each environment")
    return seed
