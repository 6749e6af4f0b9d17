"""How phase 1 grows with the number of policies: time and memory on this machine, and time on a simulated cluster.

    python benchmarks/growth.py [--seeds 1 10 40] [--steps 20480]

Spaceship, 15 policies for each seed. Every number of policies is measured in a process of its own, from its second
stage on: the first compiles. Memory is the most that the process, or the GPU, has held. The cluster's times follow from
the seconds of phase 1 in results/spaceship/paper (75 policies on one H200), as in benchmarks/schedule.py: the policies
are cut into one part a GPU, and a part takes `START` seconds more. Writes
benchmarks/results/growth.json and growth.png.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from pdvf.config import Config, to_dict
from pdvf.config.presets import preset
from pdvf.core.devices import use_all_cores
from pdvf.experiment.plan import plan
from pdvf.experiment.provenance import describe_environment
from pdvf.experiment.schedule import jobs_of, rollout_bytes, schedule
from pdvf.experiment.store import RunStore
from pdvf.paper.pipeline import PHASES, Problem
from schedule import START

HERE = Path(__file__).resolve().parent
MEASURED = HERE.parent / "results" / "spaceship" / "paper" / "manifest.json"
GPUS = (1, 8, 64)
STAGES = 3


def configured(seeds: int, steps: int) -> Config:
    base = preset("spaceship", "paper")
    ppo = replace(base.ppo, steps=steps * STAGES, checkpoints=STAGES)
    return replace(base, policy_seeds=seeds, ppo=ppo)


def measure(seeds: int, steps: int) -> dict[str, Any]:
    """Phase 1 with this many seeds, in this process."""
    use_all_cores()
    problem = Problem(configured(seeds, steps))
    training = PHASES["train"].make(problem)
    state, seconds = training.start(), []
    for stage in range(training.stages):
        began = time.perf_counter()
        state, _ = jax.block_until_ready(training.advance(state, stage))
        seconds.append(time.perf_counter() - began)
    policies, later = seeds * len(problem.contexts), sum(seconds[1:])
    held = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return {
        "policies": policies,
        "steps/s": round(policies * steps * (STAGES - 1) / later),
        "seconds of a stage": round(later / (STAGES - 1), 2),
        "seconds of the first stage": round(seconds[0], 2),
        "memory, MB": round((held or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1e6),
        "steps held at once, MB": round(rollout_bytes(problem, "train") / 1e6),
    }


def simulated(gpus: int) -> str:
    return f"minutes, {gpus} GPU{'s' * (gpus > 1)}, simulated"


def on_cluster(seeds: int) -> dict[str, float]:
    """Minutes of phase 1 at the size of `paper` on so many GPUs, simulated."""
    minutes = {}
    for gpus in GPUS:
        config = replace(preset("spaceship", "paper"), policy_seeds=seeds, shards=min(gpus, 15 * seeds))
        problem = Problem(config)
        tasks = plan(RunStore(Path("spaceship"), to_dict(config)), problem, (), ("train",))
        taken = json.loads(MEASURED.read_text())["seconds"]["train"] * seeds / preset("spaceship", "paper").policy_seeds
        minutes[simulated(gpus)] = round(schedule(jobs_of(tasks, {"train": taken}, True, START), gpus).seconds / 60, 2)
    return minutes


def draw(rows: list[dict[str, Any]], device: str) -> None:
    figure, (time_axes, memory_axes) = plt.subplots(1, 2, figsize=(9, 3.8))
    policies = [row["policies"] for row in rows]
    time_axes.plot(policies, [row["seconds of a stage"] for row in rows], "ko-", label=f"a stage, {device}")
    for gpus in GPUS:
        seconds = [60 * row[simulated(gpus)] for row in rows]
        time_axes.plot(policies, seconds, "o--", label=f"phase 1, {gpus} GPU{'s' * (gpus > 1)}, simulated")
    memory_axes.plot(policies, [row["memory, MB"] for row in rows], "ko-", label="held by the process")
    memory_axes.plot(policies, [row["steps held at once, MB"] for row in rows], "o--", label="steps of PPO alone")
    for axes, unit in ((time_axes, "seconds"), (memory_axes, "MB")):
        first = axes.get_lines()[0].get_ydata()[0]
        axes.plot(policies, [first * p / policies[0] for p in policies], "k:", linewidth=1, label="linear")
        axes.set(xscale="log", yscale="log", xlabel="policies", ylabel=unit, xticks=policies, xticklabels=policies)
        axes.minorticks_off()
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE / "results" / "growth.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 10, 40])
    parser.add_argument("--steps", type=int, default=20_480, help="of a policy in a stage")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.steps)))
        return
    rows = []
    for seeds in given.seeds:
        words = [sys.executable, __file__, "--one", str(seeds), "--steps", str(given.steps)]
        made = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        rows.append({**json.loads(made), **on_cluster(seeds)})
        print(rows[-1], flush=True)
    about = describe_environment(f"python {shlex.join(sys.argv)}")
    found = {"measured": about, "steps of a policy in a stage": given.steps, "benchmarks": rows}
    (HERE / "results" / "growth.json").write_text(json.dumps(found, indent=2) + "\n")
    draw(rows, about["device"]["kind"])


if __name__ == "__main__":
    main()
