"""What two workers are worth on two cores, and what Ray costs beside processes. Ratios of one run.

    python benchmarks/distributed.py --parts swimmer overhead      adds to benchmarks/results/distributed.json

swimmer: phase 1 in two parts, by one worker on one core and by two workers on two; the load of the machine before each
is noted. overhead: commands of tasks of ten seconds and more, by processes (first and last), by Ray on a cluster that
runs already (twice), and by Ray that the command starts. Each waits until the machine is idle; how much all of the
machine computes meanwhile is noted, which tells whether others did. Where others may, `nice -n -20` goes before it.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 1)

from pdvf.config import Config, to_dict  # noqa: E402
from pdvf.config.presets import preset  # noqa: E402
from pdvf.experiment.events import Follower  # noqa: E402
from pdvf.experiment.executors import EXECUTORS  # noqa: E402
from pdvf.experiment.plan import plan  # noqa: E402
from pdvf.experiment.progress import ignore  # noqa: E402
from pdvf.experiment.provenance import describe_environment  # noqa: E402
from pdvf.experiment.store import RunStore  # noqa: E402
from pdvf.paper.pipeline import Problem  # noqa: E402

OUT = Path(__file__).resolve().parent / "results" / "distributed.json"


PORT = 6421
WHOLE, STEADY = "seconds of the command", "seconds from the end of a part to that of the next by its worker"
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def seconds(config: Config, executor: str, workers: int, **more: Any) -> dict[str, float]:
    """Phase 1 of a run: by the clock, and what its parts say they took."""
    work, load = Path(tempfile.mkdtemp()), os.getloadavg()[0]
    try:
        store = RunStore.create(work / "run", to_dict(config), "benchmark")
        tasks = plan(store, Problem(config), (), ("train",))
        began = time.monotonic()
        assert not EXECUTORS[executor](tasks, ignore, workers, True, **more)
        taken = time.monotonic() - began
        parts = [float(store.info(task.leaves[0])["seconds"]) for task in tasks if "part" in task.name]
        return {"seconds": round(taken, 2), "seconds of the slowest part": round(max(parts), 2), "load": round(load, 1)}
    finally:
        shutil.rmtree(work)


def swimmer() -> dict[str, Any]:
    base = preset("swimmer", "smoke")
    config = replace(base, shards=2, ppo=replace(base.ppo, steps=40 * base.ppo.steps))
    with first_core():  # the simulator's threads take every core that there is
        one = seconds(config, "processes", 1)
    two = seconds(config, "processes", 2)
    return {"one worker": one, "two workers": two, "ratio": round(one["seconds"] / two["seconds"], 2)}


@contextmanager
def first_core() -> Iterator[None]:
    """Processes that start meanwhile have one core."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def overhead() -> dict[str, Any]:
    ray = ["--executor", "ray"]
    whole_command(size=2)  # the first command reads its files from the disk
    rows = {"processes": [whole_command()]}
    with cluster() as address:
        rows["ray, on a cluster that runs"] = [whole_command(*ray, "--address", address) for _ in range(2)]
    rows["processes"].append(whole_command())
    rows["ray, started for it"] = [whole_command(*ray)]
    kept = {name: {key: [row[key] for row in found] for key in found[0]} for name, found in rows.items()}
    ours, theirs = kept["ray, on a cluster that runs"], kept["processes"]
    ratios = {f"ray / processes: {key}": round(fmean(ours[key]) / fmean(theirs[key]), 3) for key in (WHOLE, STEADY)}
    return kept | ratios


@contextmanager
def cluster() -> Iterator[str]:
    """A head that runs here meanwhile: its address."""
    head = ["--head", "--port", str(PORT), "--node-ip-address", "127.0.0.1", "--include-dashboard", "false"]
    subprocess.run([*RAY, "start", *head], check=True, stdout=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{PORT}"
    finally:
        subprocess.run([*RAY, "stop"], check=True, stdout=subprocess.DEVNULL)


def whole_command(*more: str, size: int = 40) -> dict[str, float]:
    """`pdvf train` of a run in four parts, by two workers; 40 times the steps of `smoke` make parts of ten seconds."""
    work, steps = Path(tempfile.mkdtemp()), str(size * preset("spaceship", "smoke").ppo.steps)
    pdvf, run = [sys.executable, "-m", "pdvf"], str(work / "run")
    try:
        begin = ["init", "spaceship", "--preset", "smoke", "--shards", "4", "--ppo.steps", steps, "--out", run]
        subprocess.run([*pdvf, *begin], check=True, stdout=subprocess.DEVNULL)
        wait_until_idle()
        computed, began = busy_seconds(), time.monotonic()
        subprocess.run([*pdvf, "train", run, "--quiet", "--workers", "2", *more], check=True, stdout=subprocess.DEVNULL)
        taken, computed = time.monotonic() - began, busy_seconds() - computed
        events = list(Follower(work / "run", whole=True).new())
    finally:
        shutil.rmtree(work)
    ends = [event for event in events if event.kind == "finish" and "part" in event.task]
    found = {
        WHOLE: taken,
        "seconds of a part, as it says": fmean(event.seconds for event in ends),
        STEADY: fmean(later.time - event.time for event, later in zip(ends, ends[2:], strict=False)),
        "seconds of CPU, of the machine": computed,
    }
    return {name: round(value, 2) for name, value in found.items()}


def wait_until_idle() -> None:
    """Waits until the machine computes on less than a tenth of a core; eight seconds at most."""
    for _ in range(4):
        before = busy_seconds()
        time.sleep(2.0)
        if busy_seconds() - before < 0.2:
            return


def busy_seconds() -> float:
    """Seconds that the cores of the machine have computed since it started, without what gives way to all others."""
    user, _, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    guarded = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(24)}
    os.environ |= guarded | {"RAY_worker_niceness": "0"}  # tasks have the priority of processes
    parts = {"swimmer": swimmer, "overhead": overhead}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=[*parts], default=[*parts])
    for name in parser.parse_args().parts:
        data = json.loads(OUT.read_text()) if OUT.is_file() else {}
        data[name] = {"measured": describe_environment(f"python {shlex.join(sys.argv)}"), **parts[name]()}
        OUT.write_text(json.dumps(data, indent=2) + "\n")
        print(name, json.dumps(data[name]), flush=True)


if __name__ == "__main__":
    main()
