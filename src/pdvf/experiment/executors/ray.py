"""Tasks of several runs side by side, on the nodes of a Ray cluster, or on one that Ray starts here.

A Ray task starts, on its node, the process that the executor `processes` would start here, and ends with it. Ray
chooses the node and tries again where a worker or a node dies; the process goes on from the task's last saved stage.
All nodes must see the run's folder under the same path, or the run is in an object store (`experiment.remote`): then
each task works in a folder of its node, and events come here by an actor. What leaves no artefact is made here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import platform
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pdvf.core.processes import cores
from pdvf.core.validation import ConfigError
from pdvf.experiment import node
from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Listener, parse_event, write_event
from pdvf.experiment.executors.processes import Local, Process, command, environment, run_side_by_side, start
from pdvf.experiment.node import package_version
from pdvf.experiment.plan import Task, locks
from pdvf.experiment.provenance import PACKAGES
from pdvf.families.env_workers import CLUSTER, SIMULATORS

RETRIES = 3
"""How often Ray tries again where a process, a worker or a node has died, or a node cannot write."""
UNREACHABLE = 10.0
"""Seconds without an answer from the head after which the cluster is taken to be gone."""
OBJECTS = 80 * 2**20
"""Bytes of Ray's object store: artefacts go by the run's folder."""
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120", "RAY_worker_niceness": "0"}
"""Nothing is reported to anybody; a machine under load may take longer than half a minute to start Ray; and tasks have
the priority of processes (Ray's workers would let everything else on the machine go first)."""
GUARDED = {"RAY_AUTH_MODE": "token"}
"""Of a cluster that starts here: Ray listens on every address of the machine, and before 2.59 asks for no token."""
SAME_BITS = ("JAX_", "XLA_")
"""Variables with these beginnings go along to the nodes."""


def run(
    tasks: Sequence[Task],
    on_event: Listener,
    workers: int = 0,
    quiet: bool = False,
    tick: Callable[[], None] = lambda: None,
    address: str = "",
    simulators: int = 0,
) -> list[Task]:
    """As `Executor`; no workers: as many as the cluster has CPUs. `address` is that of a cluster's head, or auto.

    With simulators, the environments of a task's Gymnasium family are stepped by so many actors on any nodes.
    """
    with locks(tasks) as descriptors, _cluster(address, workers) as ray:
        mailbox = ray.remote(num_cpus=0)(node.Mailbox).remote() if any(task.store.remote for task in tasks) else None
        submit, watch = _submitter(ray, quiet, mailbox, simulators), _Watch(ray)

        def begin(task: Task) -> Process:
            return submit(task) if task.leaves else Local(start(task, descriptors, quiet), task.log)

        def look() -> None:
            watch()
            if mailbox is not None:
                for folder, line in ray.get(mailbox.take.remote()):
                    for event in parse_event(line, Path(folder)):
                        write_event(Path(folder), event)
            tick()

        room = workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        return run_side_by_side(tasks, on_event, room, begin, look)


@contextlib.contextmanager
def _cluster(address: str, workers: int) -> Iterator[Any]:
    """Ray, connected to a cluster or to one of its own."""
    settings = SETTINGS if address or _imported() else SETTINGS | GUARDED
    os.environ.update({name: value for name, value in settings.items() if name not in os.environ})
    try:
        import ray.cloudpickle
    except ImportError:
        raise ConfigError("--executor ray needs Ray, which is not installed: pip install 'pdvf[ray]'") from None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL, "namespace": "pdvf"}
    if address not in ("", "auto"):
        _require_answer(address)
    try:
        if address:
            ray.init(address, **quiet)
        else:
            room = max(workers, cores())
            with warnings.catch_warnings():  # of JAX: Ray forks, to start a program at once
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                ray.init("local", include_dashboard=False, num_cpus=room, object_store_memory=OBJECTS, **quiet)
    except Exception as error:  # of many kinds, from Ray and from below it
        raise ConfigError(_why(address, error)) from None
    ray.cloudpickle.register_pickle_by_value(node)  # else a node would look for that file in its own pdvf
    try:
        yield ray
    finally:
        ray.shutdown()


def _imported() -> bool:
    """Whether Ray has read by now how its clusters are guarded, which it does once."""
    return "ray" in sys.modules


def _require_answer(address: str) -> None:
    """Raises unless somebody listens there; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"--address is {address!r}, expected auto or HOST:PORT of a Ray cluster's head")
    if not _answers(address):
        raise ConfigError(
            f"no Ray cluster answers at --address {address}: start its head with `ray start --head --port {port}`, "
            "or check host and port"
        )


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 5.0):
            return True
    except OSError:
        return False


def _why(address: str, error: Exception) -> str:
    """What Ray says, in one line."""
    words = " ".join(str(error).split())
    if "ersion mismatch" in words:
        ours = f"Ray {importlib.metadata.version('ray')}, Python {platform.python_version()}"
        return f"the Ray cluster at {address} has other versions than this command ({ours}): {words[:300]}"
    if "uthenticat" in words:
        return (
            f"the Ray cluster at {address} asks for a token: set RAY_AUTH_MODE=token and the token of its nodes, which "
            "`ray get-auth-token` shows there, in RAY_AUTH_TOKEN"
        )
    if address == "auto":
        return (
            "--address auto finds no Ray cluster on this machine: start one with `ray start --head`, or give HOST:PORT"
        )
    where = f"connect to the Ray cluster at {address}" if address else "start Ray here"
    return f"cannot {where}: {words[:300]}"


class _Watch:
    """Notices that the head is gone, for which Ray would wait a minute and then end this process."""

    def __init__(self, ray: Any) -> None:
        self._address = ray.get_runtime_context().gcs_address
        self._answered = self._looked = time.monotonic()

    def __call__(self) -> None:
        """Raises when it has not answered for a while."""
        now = time.monotonic()
        if now < self._looked + 1.0:
            return
        self._looked = now
        if _answers(self._address):
            self._answered = time.monotonic()
        elif now > self._answered + UNREACHABLE:
            raise RunError(
                f"the head of the Ray cluster at {self._address} has not answered for {UNREACHABLE:.0f} s: start the "
                "cluster again; the same command goes on from the last finished stages"
            )


def _submitter(ray: Any, quiet: bool, mailbox: Any, simulators: int) -> Callable[[Task], Process]:
    """What hands a task to the cluster."""
    versions = {name: package_version(name) for name in ("pdvf", *PACKAGES)}
    gpus = ray.cluster_resources().get("GPU", 0) > 0
    variables = {name: value for name, value in os.environ.items() if name.startswith(SAME_BITS)}
    if simulators:
        variables |= {SIMULATORS: str(simulators), CLUSTER: ray.get_runtime_context().gcs_address}
    supervise = ray.remote(node.supervise)

    def submit(task: Task) -> Process:
        resources = {"num_cpus": 1, "num_gpus": task.gpus if gpus else 0}
        shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if gpus and task.gpus < 1 else {}
        options = supervise.options(
            name=task.title, max_retries=RETRIES, retry_exceptions=True, scheduling_strategy="SPREAD", **resources
        )
        given = environment(task) | shared | variables
        box = mailbox if task.store.remote else None
        return _Remote(ray, task, options.remote(command(task, quiet), os.getcwd(), given, versions, box))

    return submit


class _Remote:
    """A task on some node."""

    def __init__(self, ray: Any, task: Task, reference: Any) -> None:
        self._ray, self._task, self._reference = ray, task, reference
        self._status: int | None = None
        self._words = ""

    def poll(self) -> int | None:
        """As `Process`; what was published is fetched."""
        if self._status is None and self._ray.wait([self._reference], timeout=0)[0]:
            try:
                self._status, self._words = self._ray.get(self._reference)
            except Exception as error:
                self._status, self._words = 1, f"{_cause(error)} (tried {RETRIES + 1} times)"
            store, leaves = self._task.store, self._task.leaves
            if store.remote is not None and self._status == 0:
                store.remote.pull(store.folder, lambda artefact: artefact in leaves)
        return self._status

    def terminate(self) -> None:
        """As `Process`."""
        self._ray.cancel(self._reference)

    def close(self) -> None:
        """As `Process`; a node that does not answer is not waited for."""
        with contextlib.suppress(Exception):
            self._ray.wait([self._reference], timeout=5.0)

    def error(self) -> str:
        """As `Process`."""
        return self._words


def _cause(error: Exception) -> str:
    """The last line of what Ray says of a task that failed."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("RuntimeError: ") if lines else type(error).__name__
