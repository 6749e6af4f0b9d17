"""MuJoCo in C on the cores of the machine: `mujoco.rollout`, one call for the whole batch.

The simulator computes in double precision and JAX in single, so a state is carried as the bits of its doubles, two
whole numbers each; nothing is lost from one call to the next. The solver starts every step of the agent cold, which
makes the step a function of the physics alone (docs/decisions/0007-engines.md).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array
from pdvf.core.processes import cores
from pdvf.engines.base import outcome
from pdvf.families.base import MjData, MjModel, MujocoFamily, Outcome, Physics
from pdvf.families.mujoco import base_model, library, model, need

ALONE = 32  # batches up to this size are not worth waking other threads for


class BitState(NamedTuple):
    """n simulators: the bits of their full physics state, and what the task sees of it."""

    bits: Array  # [n, 2 S] uint32, pairs of words of S doubles
    physics: Physics  # [n, ...] float32


@dataclass(frozen=True)
class MujocoCEngine:
    """Steps a MuJoCo family with `mujoco.rollout`, one compiled model for each context."""

    family: MujocoFamily

    def reset(self, keys: Array, contexts: Array) -> tuple[BitState, Array]:
        """States and observations [n, o] at the start of an episode; JAX alone, no call of MuJoCo."""
        # The rest pose is the same in all contexts.
        host = self._host
        rest = Physics(*(jnp.asarray(host.at_rest[part], jnp.float32) for part in (host.qpos, host.qvel)))
        physics = jax.vmap(self.family.start, in_axes=(0, None))(keys, rest)
        physics = jax.lax.optimization_barrier(physics)  # else the compiler draws the noise anew for each use
        return self.from_task_states(physics), jax.vmap(self.family.observe)(physics)

    def step(self, contexts: Array, states: BitState, actions: Array) -> tuple[BitState, Outcome]:
        """States and outcomes after actions [n, a]; one call of MuJoCo, also for several batches under `vmap`."""
        box = self.family.action
        actions = jnp.clip(actions, box.low, box.high)
        result = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), states)
        arguments = (jnp.asarray(contexts), states.bits, actions)
        following = jax.pure_callback(self._host.step, result, *arguments, vmap_method="broadcast_all")
        return following, outcome(self, states, actions, following)

    def task_states(self, states: BitState) -> Physics:
        """Positions and velocities [n, ...]."""
        return states.physics

    def from_task_states(self, states: Physics) -> BitState:
        """Simulators with these positions and velocities [n, ...] in single precision, everything else at rest."""
        host = self._host
        state = jnp.tile(jnp.asarray(host.at_rest, jnp.float32), (states.qpos.shape[0], 1))
        state = state.at[:, host.qpos].set(states.qpos).at[:, host.qvel].set(states.qvel)
        return BitState(double_bits(state), states)

    @cached_property
    def _host(self) -> _Host:
        need("mujoco", "mujoco", "engine c")
        return _Host(self.family)


def double_bits(x: Array) -> Array:
    """The bits [..., 2 S] of numbers [..., S] as doubles, low word first; numbers below 1e-37 become 0."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    sign, exponent, fraction = (bits >> 31) << 31, (bits >> 23) & 0xFF, bits & 0x7FFFFF
    high = jnp.where(exponent == 0, sign, sign | ((exponent + 896) << 20) | (fraction >> 3))  # 896 = 1023 - 127
    low = jnp.where(exponent == 0, jnp.zeros_like(bits), fraction << 29)
    return jnp.stack([low, high], axis=-1).reshape(*x.shape[:-1], -1)


class _Pool(NamedTuple):
    """Threads of MuJoCo and the working memory of each."""

    rollout: Any
    data: list[MjData]


class _Host:
    """The side of the engine outside of JAX: NumPy and MuJoCo only, since JAX must not be called from a callback."""

    def __init__(self, family: MujocoFamily):
        self.family, self.threads = family, cores()
        self.base = base_model(family)
        mujoco = library()
        full, time = mujoco.mjtState.mjSTATE_FULLPHYSICS, mujoco.mjtState.mjSTATE_TIME
        self.at_rest = np.zeros(mujoco.mj_stateSize(self.base, full))  # a full physics state [S]
        mujoco.mj_getState(self.base, mujoco.MjData(self.base), self.at_rest, full)
        first = mujoco.mj_stateSize(self.base, time)  # it begins with the time, then come positions and velocities
        self.qpos = slice(first, first + self.base.nq)
        self.qvel = slice(self.qpos.stop, self.qpos.stop + self.base.nv)
        self._idle: dict[int, list[_Pool]] = {}
        self._lock = threading.Lock()
        self._recent: dict[bytes, list[MjModel]] = {}

    def step(self, contexts: Any, bits: Any, actions: Any) -> BitState:
        """One step of the agent in every simulator: contexts [..., c], bits [..., 2 S], actions [..., a]."""
        contexts, bits, actions = np.asarray(contexts), np.asarray(bits), np.asarray(actions)
        lead, skip = bits.shape[:-1], self.family.frame_skip
        count = int(np.prod(lead))
        state = np.ascontiguousarray(bits).view(np.float64).reshape(count, -1)
        control = np.repeat(actions.reshape(count, 1, -1).astype(np.float64), skip, axis=1)
        made = np.empty((count, skip, state.shape[1]))
        sensors = np.empty((count, skip, self.base.nsensordata))
        with self._pool(count) as pool:
            pool.rollout.rollout(
                self._models(contexts.reshape(count, -1)),
                pool.data,
                state,
                control,
                nstep=skip,
                skip_checks=True,
                state=made,
                sensordata=sensors,
            )
        last = np.ascontiguousarray(made[:, -1])
        words: Any = last.view(np.uint32)
        qpos, qvel = (last[:, at].astype(np.float32) for at in (self.qpos, self.qvel))
        physics: Any = (qpos.reshape(*lead, -1), qvel.reshape(*lead, -1))
        return BitState(words.reshape(*lead, -1), Physics(*physics))

    def _models(self, contexts: np.ndarray) -> list[MjModel]:
        """The model of each row; batches keep their contexts from step to step, so the list is looked up whole."""
        contexts = np.ascontiguousarray(contexts, np.float32)
        key = contexts.tobytes()
        found = self._recent.get(key)
        if found is None:
            rows, back = np.unique(contexts, axis=0, return_inverse=True)
            models = [model(self.family, row) for row in rows]
            found = [models[i] for i in back.ravel()]
            with self._lock:
                if len(self._recent) >= 16:
                    self._recent.clear()
                self._recent[key] = found
        return found

    @contextlib.contextmanager
    def _pool(self, count: int) -> Iterator[_Pool]:
        """A pool that nobody else uses: callers on several devices come at the same time."""
        mujoco, rollout = library(), library("rollout")

        threads = 0 if count <= ALONE or self.threads == 1 else self.threads  # 0: in the caller's own thread
        with self._lock:
            idle = self._idle.setdefault(threads, [])
            pool = idle.pop() if idle else None
        if pool is None:
            data = [mujoco.MjData(self.base) for _ in range(max(threads, 1))]
            pool = _Pool(rollout.Rollout(nthread=threads), data)
        try:
            yield pool
        finally:
            with self._lock:
                self._idle[threads].append(pool)
