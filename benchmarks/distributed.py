"""What two workers are worth on two cores, and what Ray costs beside processes. Ratios of one run.

    python benchmarks/distributed.py --parts swimmer overhead      adds to benchmarks/results/distributed.json

swimmer: phase 1 in two parts, by one worker on one core and by two workers on two. overhead: tasks of ten seconds and
more, by processes and by Ray, on a cluster that runs already and on one that the command starts. The load of the
machine before each is noted.
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
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 1)

from pdvf.config import Config, to_dict  # noqa: E402
from pdvf.config.presets import preset  # noqa: E402
from pdvf.experiment.executors import EXECUTORS  # noqa: E402
from pdvf.experiment.plan import plan  # noqa: E402
from pdvf.experiment.progress import ignore  # noqa: E402
from pdvf.experiment.provenance import describe_environment  # noqa: E402
from pdvf.experiment.store import RunStore  # noqa: E402
from pdvf.paper.pipeline import Problem  # noqa: E402

OUT = Path(__file__).resolve().parent / "results" / "distributed.json"


PORT = 6421
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
    base = preset("spaceship", "smoke")
    config = replace(base, shards=4, ppo=replace(base.ppo, steps=40 * base.ppo.steps))
    processes = seconds(config, "processes", 2)
    own = seconds(config, "ray", 2)
    head = ["--head", "--port", str(PORT), "--node-ip-address", "127.0.0.1", "--include-dashboard", "false"]
    subprocess.run([*RAY, "start", *head], check=True, stdout=subprocess.DEVNULL)
    try:
        cluster = seconds(config, "ray", 2, address=f"127.0.0.1:{PORT}")
    finally:
        subprocess.run([*RAY, "stop"], check=True, stdout=subprocess.DEVNULL)
    rows = {"processes": processes, "ray, on a cluster that runs": cluster, "ray, started for it": own}
    return rows | {"ratio": round(cluster["seconds"] / processes["seconds"], 3)}


def main() -> None:
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(24)}  # Ray reads it once
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
