"""Settings for every test, and a toy family that is learned in seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.core.arrays import Array, Box
from pdvf.families.base import Split

# Tests compile far more than they run: with little care, and once for all processes, also those that tests start.
COMPILATION = {
    "jax_platforms": "cpu",
    "jax_disable_most_optimizations": True,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_compilation_cache_dir": str(Path(__file__).parent.parent / ".pytest_cache" / "compiled"),
}
for _name, _value in COMPILATION.items():
    os.environ[_name.upper()] = str(_value)
    jax.config.update(_name, _value)
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

LONG = ("test_resume.py", "test_pipeline.py", "test_mujoco_runs.py", "test_compare.py", "test_must_learn.py")
"""Files that take longest: they start first, or one worker is still at them when the other has nothing left."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; the order is otherwise as it was."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """What a file has compiled is of no use to the next one, and takes gigabytes by the end."""
    yield
    jax.clear_caches()


@dataclass(frozen=True)
class Point:
    """A point on [-1, 1] that starts at 0, moves by action / 4 and earns side * position at every step.

    Nothing terminates an episode; the best return is 0.25 + 0.5 + 0.75 + 5 * 1 = 6.5.
    """

    name = "point"
    context_names = ("side",)
    horizon = 8
    probe_steps = 1
    observation = Box(-np.ones(1, np.float32), np.ones(1, np.float32))
    action = Box(-np.ones(1, np.float32), np.ones(1, np.float32))

    def train(self, seed: int) -> Split:
        return Split((1, 2), np.array([[-1.0], [1.0]], np.float32))

    def test(self, seed: int) -> Split:
        return Split((3,), np.array([[0.5]], np.float32))

    def initial_state(self, key: Array, context: Array) -> Array:
        return jnp.zeros(1)

    def observe(self, state: Array) -> Array:
        return state

    def transition(self, context: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        state = jnp.clip(state + jnp.clip(action, -1.0, 1.0) / 4, -1.0, 1.0)
        return state, context[0] * state[0], jnp.zeros((), bool)


@pytest.fixture(scope="session")
def point() -> Point:
    return Point()
