"""A toy family whose best returns are known with and without its hidden context."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import BaselineOptions, Config, EvaluateOptions, PlusOptions, PPOOptions
from pdvf.core.arrays import Array, Box
from pdvf.engines import Engine, NativeEngine
from pdvf.families.base import Outcome, Split, State
from pdvf.families.custom import CustomOptions
from pdvf.paper.pipeline import Problem


@dataclass(frozen=True)
class Force:
    """A point mass that is pushed by gain * action, where the hidden gain may be negative, and put back every time.

    At even steps it is at 0, earns its next position gain * action, and stays there for one step, at which nothing
    can be done or earned; then it is back at 0. It sees its position and whether a push counts, so what a push did is
    seen, but not at the moment of the next push: who does not remember pushes alike in all environments.

    With gains that are symmetric about 0, a policy without memory earns 0 on average over the environments, whatever
    it does. One that knows the sign after the first push earns the sum of |gain| over the pushes left.
    """

    name = "force"
    context_names = ("gain",)
    horizon = 9
    probe_steps = 1
    observation = Box(-np.ones(2, np.float32), np.ones(2, np.float32))
    action = Box(-np.ones(1, np.float32), np.ones(1, np.float32))

    def train(self, seed: int) -> Split:
        return Split((1, 2, 3, 4), np.array([[-1.0], [-0.6], [0.6], [1.0]], np.float32))

    def test(self, seed: int) -> Split:
        return Split((5, 6), np.array([[-0.8], [0.8]], np.float32))

    def initial_state(self, key: Array, context: Array) -> Array:
        return jnp.array([0.0, 1.0])

    def observe(self, state: Array) -> Array:
        return state

    def transition(self, context: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        pushed = context[0] * jnp.clip(action[0], -1.0, 1.0)
        counts = state[1] > 0.5
        position = jnp.where(counts, pushed, 0.0)
        return jnp.stack([position, 1.0 - state[1]]), position, jnp.zeros((), bool)

    def reward(self, before: Array, after: Array, action: Array) -> Array:
        return after[0]

    def terminated(self, before: Array, after: Array, action: Array) -> Array:
        return jnp.zeros((), bool)


BLIND = 0.0  # the most that a policy without memory can earn, on average over gains -0.8 and 0.8
INFORMED = 4 * 0.8  # what knowing the gain after one push is worth: four pushes are left

OPTIONS = Config(
    "toy",
    CustomOptions(horizon=Force.horizon, probe_steps=Force.probe_steps),
    policy_seeds=2,
    model_seeds=2,
    ppo=PPOOptions(
        steps=16 * 32 * 40,
        environments=16,
        rollout=32,
        epochs=6,
        minibatches=4,
        learning_rate=3e-3,
        hidden=16,
        checkpoints=1,
    ),
    evaluate=EvaluateOptions(episodes=1),
    baselines=BaselineOptions(
        clusters=2,
        meta_batch=16,
        meta_batches=4,
        recurrent_environments=16,
        recurrent_rollout=32,
        recurrent_minibatches=4,
        history=4,
        estimation_rounds=2,
        estimation_updates=200,
    ),
    plus=PlusOptions(code=2, width=32, rows=2048, updates=500, batch=256),
)


@dataclass(frozen=True)
class ToyProblem(Problem):
    """The toy in place of the family that the configuration names."""

    config: Config = OPTIONS

    @cached_property
    def engine(self) -> Engine:
        return NativeEngine(Force())


@dataclass(frozen=True)
class Counting(NativeEngine):
    """Counts the environment steps that are really made."""

    count: Any = None

    def step(self, contexts: Array, states: State, actions: Array) -> tuple[State, Outcome]:
        def add(actions: np.ndarray) -> np.ndarray:
            self.count.steps += actions.size // self.family.action.size
            return np.zeros(actions.shape[:-2], np.float32)

        nothing = jax.pure_callback(add, jax.ShapeDtypeStruct((), jnp.float32), actions, vmap_method="expand_dims")
        states, outcome = super().step(contexts, states, actions + nothing)
        # Else a compiler that sees that no episode ends leaves out those that are played to see whether they do.
        return states, outcome._replace(terminated=outcome.terminated | (nothing > 0.5))


@dataclass(frozen=True)
class CountingProblem(ToyProblem):
    """The toy, whose engine counts."""

    count: Any = field(default_factory=lambda: SimpleNamespace(steps=0))

    @cached_property
    def engine(self) -> Engine:
        return Counting(Force(), self.count)  # pyright: ignore
