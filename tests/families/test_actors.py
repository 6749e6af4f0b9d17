"""Environments in actors of a Ray cluster do what they do in processes, also after an actor has died."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

from pdvf.families.custom import GymFamily
from pdvf.families.env_pool import EnvPool, Key, Move, UserEnvError
from pdvf.families.env_workers import SIMULATORS

CONTEXTS = [np.array([force], np.float32).tobytes() for force in (0.1, 0.2, 0.3)]


class Drift(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, context):
        self.force = context["force"]

    def reset(self, *, seed=None, options=None):
        self.place = np.random.default_rng(seed).normal(size=1)
        return self.place.astype(np.float32), {}

    def step(self, action):
        if action[0] > 0.9:
            raise RuntimeError("too far")
        self.place = 0.9 * self.place + action + self.force
        return self.place.astype(np.float32), float(self.place[0]), False, False, {}


def drift() -> GymFamily:
    contexts = [{"force": 0.1}, {"force": 0.2}, {"force": 0.3}]
    return GymFamily("drift", Drift, contexts, [{"force": 0.4}], horizon=9, workers=2)


@pytest.fixture
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    from pdvf.experiment.executors.ray import _cluster

    with _cluster("", 3):
        yield
    assert not ray.is_initialized()


def play(pool: EnvPool, steps: range, past: np.ndarray, marks: list[bytes]) -> list[np.ndarray]:
    """Rewards of steps that continue histories of zeros."""
    rewards = []
    for step in steps:
        keys: list[Key] = [(context, mark) for context, mark in zip(CONTEXTS, marks, strict=True)]
        action = np.full(1, 0.1 * step, np.float32)
        moves = [Move(key, 7, past, action) for key in keys]
        marks[:] = [bytes([step, i]) * 4 for i in range(3)]
        rewards.append(pool.step(moves, marks, 9, 1).reward)
        past = np.append(past, action[None], 0)
    return rewards


@pytest.mark.slow
def test_actors_do_as_processes_do(cluster, monkeypatch):
    start, nothing = [b"0" * 8] * 3, np.zeros((0, 1), np.float32)
    here = drift().pool
    expected = play(here, range(6), nothing, list(start))
    here.close()
    monkeypatch.setenv(SIMULATORS, "2")
    pool, marks = drift().pool, list(start)
    found = play(pool, range(3), nothing, marks)
    assert type(pool._workers[0]).__name__ == "ActorWorker"
    assert len(pool._workers) == 2
    pool._workers[0].close()
    past = 0.1 * np.arange(3, dtype=np.float32)[:, None]
    found += play(pool, range(3, 6), past, marks)  # others play the three steps again
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(UserEnvError, match=r"raised RuntimeError in step in context \{'force': 0.1.*too far"):
        pool.step([Move((CONTEXTS[0], b"0" * 8), 7, nothing, np.ones(1, np.float32))], [b"1" * 8], 9, 1)
    with contextlib.suppress(Exception):
        pool.close()
