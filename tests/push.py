"""A small environment and what can be wrong with it: apart, so that worker processes need not import the tests."""

from __future__ import annotations

import gymnasium
import numpy as np


class Push(gymnasium.Env):
    """A point that is pushed by the action and by a hidden force; it ends beyond 3."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, context):
        self.force = context["force"]
        self.weight = context.get("weight", 1.0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2) * 0.1
        return self.state.astype(np.float32), {}

    def step(self, action):
        self.state = self.state + 0.1 * np.array([self.state[1], (action[0] + self.force) / self.weight])
        return self.state.astype(np.float32), float(self.state[0]), bool(abs(self.state[0]) > 3), False, {}


class Discrete(Push):
    action_space = gymnasium.spaces.Discrete(2)


class Dictionary(Push):
    observation_space = gymnasium.spaces.Dict({"place": Push.observation_space})


class NotANumber(Push):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class Raises(Push):
    def step(self, action):
        raise RuntimeError("the motor is on fire")


class Grows(Push):
    def step(self, action):
        observation, *rest = super().step(action)
        return np.append(observation, 1.0), *rest


class Ignores(Push):
    def __init__(self, context):
        super().__init__(context | {"force": 0.3})


class Tells(Push):
    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.state[1] = self.force
        return np.array([observation[0], self.force], np.float32), info


class Unseeded(Push):
    def reset(self, *, seed=None, options=None):
        super().reset()
        self.state = np.random.default_rng().normal(size=2) * 0.1
        return self.state.astype(np.float32), {}


class EndsAtOnce(Push):
    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, True, truncated, info


class Elsewhere:
    """A family that is no GymFamily."""

    name, context_names, horizon, probe_steps = "elsewhere", ("force",), 8, 1

    @property
    def observation(self):
        from pdvf.core.arrays import Box

        return Box(-np.ones(2, np.float32), np.ones(2, np.float32))

    action = observation

    def train(self, seed):
        from pdvf.families.base import Split

        return Split((1, 2), np.array([[-1.0], [0.1]], np.float32))

    test = train

    def make(self, context):
        return Push(context | {"weight": float(context["force"] in (-1.0, 0.1))})  # not 0.10000000149


class Draws(Push):
    """Draws how far it got; where the force is 9 it has nothing to show."""

    render_mode = "rgb_array"

    def render(self):
        picture = np.full((10, 20, 3), 200, np.uint8)
        picture[:, : int(np.clip(10 + 5 * self.state[0], 0, 20))] = 0
        return picture if self.force != 9.0 else "a picture"
