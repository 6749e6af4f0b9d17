"""MJX: MuJoCo on an accelerator, in two implementations: `jax`, a reference, and `warp`, fast on an NVIDIA GPU.

All worlds, of whatever policy, are one flat batch. They share one model, save for the numbers in which the compiled
models of the contexts differ: those are stacked [K, ...] and each world takes its context's row. Warp's buffers for
contacts and constraint rows are as large as the model can need; where they overflow all the same, or where a context
is not in the table, rewards become NaN, which ends the stage with an error (docs/decisions/0007-engines.md).
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array
from pdvf.core.validation import ConfigError
from pdvf.engines.base import outcome
from pdvf.engines.mjx_limits import contacts, rows
from pdvf.families.base import MjModel, MujocoFamily, Outcome, Physics
from pdvf.families.mujoco import base_model, model, need

HARMLESS = ("stat.", "cam_", "light_", "bvh_", "dof_M0", "dof_length", "actuator_acc0", "tex", "vis.")
"""Numbers that follow from others and that no step reads, save `stat`, which scales the solver's tolerance a little."""


@dataclass(frozen=True)
class MjxEngine:
    """Steps a MuJoCo family with MJX, in single precision."""

    family: MujocoFamily
    contexts: tuple[tuple[float, ...], ...]
    """Contexts [K, c] that it can simulate."""
    implementation: Literal["jax", "warp"] = "jax"

    def __post_init__(self) -> None:  # now: a run's folder is made next
        for package in ("mujoco", "warp") if self.implementation == "warp" else ("mujoco",):
            need(package, package, self.name)

    @property
    def name(self) -> str:
        """Its name in errors."""
        return f"engine {'warp' if self.implementation == 'warp' else 'mjx'}"

    def reset(self, keys: Array, contexts: Array) -> tuple[Physics, Array]:
        """States and observations [n, o] at the start of an episode."""
        # The rest pose is the same in all contexts.
        physics = jax.vmap(self.family.start, in_axes=(0, None))(keys, self._table.rest)
        return physics, jax.vmap(self.family.observe)(physics)

    def step(self, contexts: Array, states: Physics, actions: Array) -> tuple[Physics, Outcome]:
        """States and outcomes after actions [n, a]; one batch, also for several under `vmap`."""
        box = self.family.action
        actions = jnp.clip(actions, box.low, box.high)
        after, sound = self._simulate(jnp.asarray(contexts, jnp.float32), states, actions)
        made = outcome(self, states, actions, after)
        return after, made._replace(reward=jnp.where(sound, made.reward, jnp.nan))

    def task_states(self, states: Physics) -> Physics:
        """States as they are."""
        return states

    def from_task_states(self, states: Physics) -> Physics:
        """The same."""
        return states

    @cached_property
    def _table(self) -> _Table:
        return _Table(self)

    @cached_property
    def _simulate(self) -> Any:
        """States after a step and whether they can be trusted [n], for contexts [n, c], states and actions [n, a]."""
        table = self._table
        flat = jax.custom_batching.custom_vmap(table.step)

        @flat.def_vmap
        def several(size: int, batched: Any, *arguments: Any) -> Any:
            """Batches of batches are one larger batch."""

            def join(x: Array, is_batched: bool) -> Array:
                x = x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
                return x.reshape(-1, *x.shape[2:])

            made = flat(*jax.tree.map(join, arguments, tuple(batched)))
            parted = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), made)
            return parted, jax.tree.map(lambda _: True, parted)

        return flat


class _Table:
    """The models of all contexts: what they share on the device, and what differs [K, ...]."""

    def __init__(self, engine: MjxEngine):
        mjx = _mjx()
        self.engine, self.family = engine, engine.family
        self.contexts = np.array(engine.contexts, np.float32)
        self.models = [model(self.family, row) for row in self.contexts]
        base = base_model(self.family)
        rest: Any = (base.qpos0.astype(np.float32), np.zeros(base.nv, np.float32))
        self.rest = Physics(*rest)
        fluid = [m.opt.density > 0 or m.opt.viscosity > 0 or m.opt.wind.any() for m in self.models]
        # Whether there is a fluid is fixed when a model is put on the device, so one with a fluid goes first.
        self.first = self.models[int(np.argmax(fluid))]
        with jax.ensure_compile_time_eval():
            device = [mjx.put_model(m, impl=engine.implementation) for m in self.models]
        self.shared = device[int(np.argmax(fluid))]
        self.varying = _varying(self.models, device, engine)

    def find(self, context: Array) -> tuple[Array, Array]:
        """Rows [n] of contexts [n, c] in the table, and whether they are there [n]."""
        distance = jnp.max(jnp.abs(context[:, None] - self.contexts), axis=-1)  # [n, K]
        return jnp.argmin(distance, axis=-1), jnp.min(distance, axis=-1) < 1e-5

    def step(self, context: Array, physics: Physics, action: Array) -> tuple[Physics, Array]:
        """One step of the agent in each world of a flat batch [n, ...]."""
        mjx = _mjx()
        index, known = self.find(context)
        fields = {name: jnp.asarray(x)[index] for name, x in self.varying.items()}
        empty, warp = self._data(context.shape[0]), self.engine.implementation == "warp"

        def one(fields: dict[str, Array], physics: Physics, action: Array) -> tuple[Physics, Array]:
            variant = self.shared.tree_replace(fields) if fields else self.shared
            data = empty.replace(qpos=physics.qpos, qvel=physics.qvel, ctrl=action)
            if warp:  # a loop would copy the buffers
                for _ in range(self.family.frame_skip):
                    data = mjx.step(variant, data)
                full = data._impl.overflow & _buffers() != 0
            else:
                data = jax.lax.fori_loop(0, self.family.frame_skip, lambda _, d: mjx.step(variant, d), data)
                full = jnp.zeros((), bool)
            return Physics(data.qpos, data.qvel), ~full

        with jax.numpy_dtype_promotion("standard"):
            after, sound = jax.vmap(one)(fields, physics, action)
        # The buffer for contacts is common to all worlds, so none of them can be trusted when it was too small.
        return after, jnp.all(sound) & known

    def _data(self, worlds: int) -> Any:
        """Working memory at rest; made inside the program, so that it need not be stored with it."""
        sizes = {}
        if self.engine.implementation == "warp":
            sizes = {"naconmax": max(contacts(self.first) * worlds, 1), "njmax": max(rows(self.first), 1)}
        with jax.ensure_compile_time_eval():
            data = _mjx().make_data(self.first, impl=self.engine.implementation, **sizes)
            data = jax.tree.map(np.asarray, data)
        return jax.tree.map(_constant, data)


def _mjx() -> Any:
    """The module; where Warp is not installed it says so on standard output, which is none of our users' business."""
    with contextlib.redirect_stdout(io.StringIO()):
        from mujoco import mjx
    return mjx


def _constant(x: np.ndarray) -> Array:
    """An array; where all of its entries are equal, made from one number."""
    if x.size and np.all(x == x.ravel()[0]):
        return jnp.full(x.shape, x.ravel()[0], x.dtype)
    return jnp.asarray(x)


def _buffers() -> int:
    """Bits of Warp's overflow mask that mean lost contacts or constraints; others mean an inexact solution."""
    from mujoco.mjx.third_party.mujoco_warp._src.types import OverflowType

    return int(OverflowType.ALL & ~(OverflowType.ITERATIONS | OverflowType.LS_ITERATIONS))


def _varying(models: list[MjModel], device: list[Any], engine: MjxEngine) -> dict[str, np.ndarray]:
    """What differs between models that are on the device, by name, stacked [K, ...]."""
    named = [_leaves(one) for one in device]
    allowed = _batchable(named[0]) if engine.implementation == "warp" else set(named[0])
    differing = _differing(models)
    for name in sorted(differing - allowed):
        raise ConfigError(
            f"contexts change {name} of the model, which cannot differ between worlds of {engine.name}; use engine c"
        )
    return {name: np.stack([np.asarray(one[name]) for one in named]) for name in sorted(differing)}


def _differing(models: list[MjModel]) -> set[str]:
    """Names of the numbers in which compiled models differ and that a step may read."""
    first, found = _numbers(models[0]), set()
    for other in map(_numbers, models[1:]):
        found |= {name for name, x in other.items() if not np.array_equal(x, first[name], equal_nan=True)}
    return {name for name in found if not name.startswith(HARMLESS)}


def _numbers(compiled: MjModel) -> dict[str, np.ndarray]:
    """Every number of a compiled model by the name MJX gives it."""
    parts = {"": compiled, "opt.": compiled.opt, "stat.": compiled.stat}
    numbers = {}
    for prefix, part in parts.items():
        for name in dir(part):
            value = getattr(part, name) if not name.startswith("_") else None
            if isinstance(value, np.ndarray | int | float) and np.asarray(value).dtype.kind in "biuf":
                numbers[prefix + name] = np.asarray(value)
    return numbers


def _leaves(device: Any) -> dict[str, Any]:
    """Arrays of a model on the device by name, such as `opt.wind`."""
    leaves = jax.tree_util.tree_leaves_with_path(device)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _batchable(names: Any) -> set[str]:
    """Those of which Warp takes one for each world."""
    from mujoco.mjx.warp import types

    allowed = types._BATCH_DIM["Model"]
    return {name for name in names if allowed.get(name.replace(".", "__"), False)}
