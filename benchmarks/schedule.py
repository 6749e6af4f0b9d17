"""How `pdvf reproduce` of all four families would scale to 64 GPUs, simulated from times measured on one H200.

    python benchmarks/schedule.py      writes benchmarks/results/schedule.json and schedule.png

A task's time is that of results/FAMILY/paper/manifest.json, where several tasks shared the GPU; here it has the share
of a GPU that `Task.gpus` says, so the times are on the slow side. A part of phase 1 or of a method takes its part of
the time and `START` seconds more to begin and to compile, which is assumed and not measured.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from pdvf.config import to_dict
from pdvf.config.presets import preset
from pdvf.experiment.plan import plan
from pdvf.experiment.schedule import Job, jobs_of, longest_chain, schedule
from pdvf.experiment.store import RunStore
from pdvf.families.registry import family_names
from pdvf.methods import METHODS
from pdvf.paper.pipeline import Problem

HERE = Path(__file__).resolve().parent
START = 20.0
GPUS = (1, 2, 4, 8, 16, 32, 64)
SHARDS = (1, 5, 20)


def jobs(shards: int, policies: int = 1) -> list[Job]:
    """Of all families; with `policies` times as many policies in phase 1, whose time grows as they do."""
    found: list[Job] = []
    for family in family_names():
        config = replace(preset(family, "paper"), shards=shards)
        measured = json.loads((HERE.parent / "results" / family / "paper" / "manifest.json").read_text())["seconds"]
        seconds = {**measured, "train": measured["train"] * policies}
        tasks = plan(RunStore(Path(family), to_dict(config)), Problem(config), list(METHODS.values()))
        found += jobs_of(tasks, seconds, True, START)
    return found


def main() -> None:
    result = {"start": START, "gpus": GPUS, "shards": {}}
    figure, axes = plt.subplots(figsize=(6, 4))
    for shards in SHARDS:
        all_jobs = jobs(shards)
        bound, chain = longest_chain(all_jobs)
        made = [schedule(all_jobs, count) for count in GPUS]
        result["shards"][shards] = {
            "seconds": [round(one.seconds, 1) for one in made],
            "busy": [round(one.busy, 3) for one in made],
            "longest chain": round(bound, 1),
            "chain": [f"{job.run} {job.name}" for job in chain],
        }
        (line,) = axes.plot(GPUS, [one.seconds / 60 for one in made], "o-", label=f"{shards} parts")
        axes.axhline(bound / 60, color=line.get_color(), linestyle=":", linewidth=1)
    first = schedule(jobs(1), 1).seconds / 60
    axes.plot(GPUS, [first / count for count in GPUS], "k--", linewidth=1, label="linear")
    result["policies"] = {
        times: [round(schedule(jobs(20, times), count).seconds, 1) for count in (1, 8, 64)] for times in (1, 2, 10, 40)
    }
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="minutes", xticks=GPUS, xticklabels=GPUS)
    axes.legend()
    axes.set_title("reproduce, four families, preset paper (simulated)")
    figure.tight_layout()
    figure.savefig(HERE / "results" / "schedule.png", dpi=110)
    (HERE / "results" / "schedule.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
