"""What two workers are worth on two cores, and what Ray costs beside processes. Ratios of one run.

    python benchmarks/distributed.py --parts swimmer overhead      adds to benchmarks/results/distributed.json

swimmer: phase 1 in two parts, by one worker and by two. overhead: tasks of ten seconds, by processes and by Ray.
Each process has one device, so that one worker keeps one core busy. The load of the machine before each is noted.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
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


def seconds(config: Config, executor: str, workers: int) -> dict[str, float]:
    """Phase 1 of a run: by the clock, and what its parts say they took."""
    work, load = Path(tempfile.mkdtemp()), os.getloadavg()[0]
    try:
        store = RunStore.create(work / "run", to_dict(config), "benchmark")
        tasks = plan(store, Problem(config), (), ("train",))
        began = time.monotonic()
        assert not EXECUTORS[executor](tasks, ignore, workers, True)
        taken = time.monotonic() - began
        parts = [float(store.info(task.leaves[0])["seconds"]) for task in tasks if "part" in task.name]
        return {"seconds": round(taken, 2), "seconds of the slowest part": round(max(parts), 2), "load": round(load, 1)}
    finally:
        shutil.rmtree(work)


def swimmer() -> dict[str, Any]:
    base = preset("swimmer", "smoke")
    config = replace(base, shards=2, ppo=replace(base.ppo, steps=24 * base.ppo.steps))
    one, two = seconds(config, "processes", 1), seconds(config, "processes", 2)
    return {"one worker": one, "two workers": two, "ratio": round(one["seconds"] / two["seconds"], 2)}


def overhead() -> dict[str, Any]:
    base = preset("spaceship", "smoke")
    config = replace(base, shards=4, ppo=replace(base.ppo, steps=40 * base.ppo.steps))
    processes, ray = seconds(config, "processes", 2), seconds(config, "ray", 2)
    return {"processes": processes, "ray": ray, "ratio": round(ray["seconds"] / processes["seconds"], 3)}


def main() -> None:
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
