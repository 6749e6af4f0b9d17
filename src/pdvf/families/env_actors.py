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
from pdvf.families.env_process import LOADING
from pdvf.families.env_workers import CLUSTER, NO_ANSWER, ProcessWorker, WorkerLost

ROOM = 60.0
"""Seconds in which the first actor must have found a node with a free CPU."""
OTHERS = 5.0
"""Seconds that the others are then given."""


class Actor:
    """On a node: one worker process, and what it answers."""

    def __init__(self, source: bytes, origin: targets.Origin | None, paths: Sequence[str]) -> None:
        sys.path += [path for path in paths if path not in sys.path]
        self._worker = ProcessWorker(source, origin)

    def place(self) -> str:
        """The node's name, once it is there."""
        return os.uname().nodename

    def ask(self, data: bytes | None) -> bytes | str:
        """The answer to a request, or to the first greeting; how the process ended, where it has."""
        try:
            if data is not None:
                self._worker.send(data)
            while not self._worker.ready([self._worker], 0.5):
                if ended := self._worker.ending(0.0):
                    return ended
            return self._worker.receive()
        except (EOFError, OSError):
            return self._worker.ending(1.0) or NO_ANSWER

    def at(self) -> tuple[int, ...]:
        """What the process is at."""
        return tuple(self._worker.at())


class ActorWorker:
    """Here: an actor and the answer it owes."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._answer = actor.ask.remote(None)
        self._ending: str | None = None
        self._last: tuple[int, ...] = (0, 0, LOADING)

    def send(self, data: bytes) -> None:
        """As `Worker`."""
        self._answer = self._actor.ask.remote(data)

    def ready(self, workers: Sequence[ActorWorker], seconds: float) -> list[int]:
        """As `Worker`."""
        answers = [worker._answer for worker in workers]
        found, _ = self._ray.wait(answers, num_returns=1, timeout=seconds, fetch_local=True)
        return [answers.index(answer) for answer in found]

    def receive(self) -> bytes:
        """As `Worker`; a node that is gone is no fault of an environment."""
        try:
            answer = self._ray.get(self._answer)
        except Exception as error:
            raise WorkerLost(type(error).__name__) from None
        if isinstance(answer, str):
            self._ending = answer
            raise EOFError
        return answer

    def at(self) -> Sequence[int]:
        """As `Worker`; as last heard, where it does not answer."""
        with contextlib.suppress(Exception):
            self._last = self._ray.get(self._actor.at.remote(), timeout=5.0)
        return self._last

    def ending(self, seconds: float) -> str | None:
        """As `Worker`: known once there is an answer."""
        return self._ending

    def kill(self) -> None:
        """As `Worker`: its process ends with it."""
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)

    def close(self) -> None:
        """As `Worker`."""
        self.kill()

    def release(self) -> None:
        """As `Worker`."""


def start(source: bytes, origin: targets.Origin | None, count: int) -> list[ActorWorker]:
    """Actors on nodes with free CPUs, one a CPU: as many as there is room for, and no more than `count`."""
    ray = _connected()
    kind = ray.remote(num_cpus=1, max_concurrency=2, scheduling_strategy="SPREAD")(Actor)
    actors = [kind.remote(source, origin, sys.path) for _ in range(count)]
    asked = [actor.place.remote() for actor in actors]
    first, _ = ray.wait(asked, num_returns=1, timeout=ROOM)
    found, _ = ray.wait(asked, num_returns=count, timeout=OTHERS if first else 0.0)
    if not found:
        for actor in actors:
            ray.kill(actor)
        free = ray.available_resources().get("CPU", 0.0)
        raise ConfigError(
            f"--simulators: no actor could start within {ROOM:.0f} s, the cluster has {free:.0f} free CPUs, expected "
            "one at least: fewer --workers leave some"
        )
    for actor, place in zip(actors, asked, strict=True):
        if place not in found:
            ray.kill(actor)
    try:
        ray.get(found)
    except Exception as error:
        words = str(error).strip().splitlines()[-1]
        raise ConfigError(
            f"environments cannot be stepped on other nodes ({words}): expected the same folders and packages there"
        ) from None
    there = [actor for actor, place in zip(actors, asked, strict=True) if place in found]
    return [ActorWorker(ray, actor) for actor in there]


def _connected() -> Any:
    """Ray, connected to the cluster that this process is a task of."""
    import ray

    if not ray.is_initialized():
        ray.init(os.environ.get(CLUSTER) or None, log_to_driver=False, logging_level=logging.CRITICAL)
    return ray
