"""Spreads an ensemble over the devices of one machine; on a CPU, one device a core.

Programs of small operations hardly use a second core by themselves. One device for each part of the ensemble keeps
every core busy; nothing is exchanged between the parts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from pdvf.core.processes import cores

Program = Callable[[Any, Any], Any]
"""From what all rows share, and what is split by rows, to a result with the same rows."""


def use_all_cores(devices: int | None = None) -> None:
    """Makes every core a device of its own, or as many devices as given; other backends do not mind.

    Sums are taken in another order on another number of devices: a run keeps the number that it was begun with.
    Call before anything is computed: a process that has its devices already keeps them.
    """
    devices = devices or cores()
    os.environ.setdefault("PJRT_NPROC", str(4 * devices))  # see docs/decisions/0002-two-cores.md
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", devices)
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` for programs that run for seconds: on a CPU they spend as long with the compiler.

    At the compiler's first level it is done sooner and the code is as fast here (docs/decisions/0002-two-cores.md);
    `jax_disable_most_optimizations` asks for level 0. Not for use inside another program, which decides for all of it.
    """
    plain = jax.jit(function)
    levels = [jax.jit(function, compiler_options={"xla_backend_optimization_level": level}) for level in (0, 1)]

    def call(*arguments: Any) -> Any:
        if jax.default_backend() != "cpu":
            return plain(*arguments)
        return levels[not jax.config.values["jax_disable_most_optimizations"]](*arguments)

    return call


def shard_over_devices(function: Program) -> Program:
    """Compiles `function(shared, split)`, which maps over the leading axis of `split`, for all devices.

    The function must treat the rows of `split` independently of each other. As many devices work as divide the rows
    evenly; what it returns is on the first.
    """
    plain, sharded = compiled(function), dict[int, Program]()

    def call(shared: Any, split: Any) -> Any:
        rows, devices = jax.tree.leaves(split)[0].shape[0], jax.local_devices()
        parts = max(n for n in range(1, len(devices) + 1) if rows % n == 0)
        if parts == 1:
            return plain(shared, split)
        mesh = Mesh(np.array(devices[:parts]), ("rows",))
        if parts not in sharded:
            specs = {"in_specs": (Spec(), Spec("rows")), "out_specs": Spec("rows")}
            sharded[parts] = compiled(jax.shard_map(function, mesh=mesh, **specs, check_vma=False))
        shared = jax.device_put(shared, NamedSharding(mesh, Spec()))
        split = jax.device_put(split, NamedSharding(mesh, Spec("rows")))
        return jax.device_put(sharded[parts](shared, split), devices[0])

    return call


def run_concurrently(*calls: tuple[Callable[..., Any], tuple[Any, ...]]) -> list[Any]:
    """Results of independent calls (function, arguments), made at the same time, each on a device of its own."""
    devices = jax.local_devices()
    if len(devices) == 1 or len(calls) == 1:
        return [function(*arguments) for function, arguments in calls]

    def work(i: int) -> Any:
        function, arguments = calls[i]
        return jax.block_until_ready(function(*jax.device_put(arguments, devices[i % len(devices)])))

    with ThreadPoolExecutor(len(calls)) as pool:
        results = list(pool.map(work, range(len(calls))))
    return jax.device_put(results, devices[0])
