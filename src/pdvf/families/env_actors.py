"""Users' environments on the nodes of a Ray cluster: an actor starts a worker process on its node and speaks for it.

Worth it where a simulator is slow: a request costs about a millisecond more than to a process here. A node that dies
takes its environments along, but no history: others play it again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from pdvf.core.validation import ConfigError
from pdvf.families import loading as targets
from pdvf.families.env_workers import CLUSTER, ProcessWorker, WorkerLost

ROOM = 60.0
"""Seconds in which the first actor must have found a node with a free CPU."""
OTHERS = 5.0
"""Seconds that the others are then given."""


class Actor:
    """On a node: one worker process, and what it answers."""

    def __init__(self, source: bytes, origin: targets.Origin | None, paths: Sequence[str]) -> None:
        sys.path += [path for path in paths if path not in sys.path]
        self._worker = ProcessWorker(source, origin)

    def call(self, command: tuple[Any, ...] | None, limit: float) -> Any:
        """The answer to a command; without one, the first of all."""
        if command is not None:
            self._worker.send(command, limit)
        return self._worker.result()


class ActorWorker:
    """Here: an actor and the answer it owes."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._answer = actor.call.remote(None, 0.0)

    def send(self, command: tuple[Any, ...], limit: float) -> None:
        """As `Worker`."""
        self._answer = self._actor.call.remote(command, limit)

    def result(self) -> Any:
        """As `Worker`; a node that is gone is no fault of an environment."""
        try:
            return self._ray.get(self._answer)
        except Exception as error:
            raise WorkerLost(type(error).__name__) from None

    def close(self) -> None:
        """As `Worker`: its process ends with it."""
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)

    def release(self, until: float) -> None:
        """As `Worker`."""


def start(source: bytes, origin: targets.Origin | None, count: int) -> list[ActorWorker]:
    """Actors on nodes with free CPUs, one a CPU: as many as there is room for, and no more than `count`."""
    ray = _connected()
    kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(Actor)
    made = [kind.remote(source, origin, sys.path) for _ in range(count)]
    actors = {actor.__ray_ready__.remote(): actor for actor in made}
    first, _ = ray.wait(list(actors), num_returns=1, timeout=ROOM)
    ready, late = ray.wait(list(actors), num_returns=count, timeout=OTHERS if first else 0.0)
    for answer in late:
        ray.kill(actors[answer])
    if not ready:
        free = ray.available_resources().get("CPU", 0.0)
        raise ConfigError(
            f"--simulators: no actor could start within {ROOM:.0f} s, the cluster has {free:.0f} free CPUs, expected "
            "one at least: fewer --workers leave some"
        )
    try:
        ray.get(ready)
    except Exception as error:
        words = str(error).strip().splitlines()[-1]
        raise ConfigError(
            f"environments cannot be stepped on other nodes ({words}): expected the same folders and packages there"
        ) from None
    return [ActorWorker(ray, actors[answer]) for answer in ready]


def _connected() -> Any:
    """Ray, connected to the cluster that this process is a task of."""
    import ray

    if not ray.is_initialized():
        ray.init(os.environ.get(CLUSTER) or None, log_to_driver=False, logging_level=logging.CRITICAL)
    return ray
