"""An adapter beside a Gymnasium environment: it acts, or watches, and every `info` says what it has inferred."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from pdvf.deploy.runtime import Adapter, AdapterError


class AdaptiveWrapper(gymnasium.Wrapper):
    """Lets a trained model act in an environment, and puts what it infers into `info["adaptation"]`.

        env = pdvf.AdaptiveWrapper(gymnasium.make("Pendulum-v1"), pdvf.load("pendulum.pdvf"))
        observation, info = env.reset(seed=0)
        while not over:
            observation, reward, terminated, truncated, info = env.step()    # or env.step(env.act())
            info["adaptation"]["out_of_distribution"]

    `step()` without an action carries out the adapter's. An action of your own is carried out instead, and the adapter
    is told, so what it infers follows from what was done. `info["adaptation"]` is `Adapter.inferred`, of everything up
    to the action that was carried out last.

    Args:
        env: an environment with the observations, and the actions with their bounds, that the model is for.
        adapter: what `pdvf.load`, `Run.adapter` or `Adapter.load` returns; one environment has it for itself.
    """

    def __init__(self, env: gymnasium.Env, adapter: Adapter):
        super().__init__(env)
        observations, actions = _box(env.observation_space, "observation"), _box(env.action_space, "action")
        given = observations.shape, actions.shape
        expected = (adapter.observation_size,), (adapter.action_size,)
        if given != expected:
            raise AdapterError(f"the environment has observation and action of shapes {given}, expected {expected}")
        low, high = adapter.bounds
        if not (np.allclose(actions.low, low) and np.allclose(actions.high, high)):
            raise AdapterError(
                f"the environment's actions go from {actions.low} to {actions.high}, expected {low} to {high}: use "
                "gymnasium.wrappers.RescaleAction"
            )
        self.adapter = adapter
        self._decided: np.ndarray | None = None  # for the present observation

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """As the environment's; the adapter forgets the episode before."""
        self._observation, info = self.env.reset(**options)
        self.adapter.reset(self._observation)
        self._decided = None
        return self._observation, self._told(info)

    def act(self) -> np.ndarray:
        """The adapter's action [a] for the present observation; asked twice, it is the same."""
        if self._decided is None:
            self._decided = self.adapter.act(self._observation)
        return self._decided.copy()

    def step(self, action: Any = None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Carries out the adapter's action, or another one."""
        own = self.act()
        if action is None:
            action = own
        else:
            self.adapter.took(action)
        self._observation, reward, terminated, truncated, info = self.env.step(action)
        self._decided = None
        return self._observation, reward, terminated, truncated, self._told(info)

    def _told(self, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, "adaptation": self.adapter.inferred}


def _box(space: gymnasium.Space, name: str) -> gymnasium.spaces.Box:
    if not isinstance(space, gymnasium.spaces.Box):
        raise AdapterError(f"the environment's {name} space is {space}, expected a Box: use a wrapper of Gymnasium")
    return space
