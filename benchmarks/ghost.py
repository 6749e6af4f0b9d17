"""What the ghosts of `pdvf play` are worth beside the packaged models, in every environment of a family.

python benchmarks/ghost.py [--families F ...] [--episodes N] [--out FILE]     writes benchmarks/results/ghost.json

Both play the same starts. Of PD-VF-plus also the same model under its prior throughout, which is no ghost.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from pdvf.core.objective import objective_of
from pdvf.deploy.belief_runtime import BeliefAdapter
from pdvf.deploy.pretrained import find, load
from pdvf.deploy.runtime import Adapter
from pdvf.experiment.provenance import processor
from pdvf.live.session import Player, dials_of, load_ghost, make_simulation

FAMILIES = ("ant-wind", "spaceship")
FIRST_SEED = 1000


def under_prior(file: Path) -> Adapter:
    """PD-VF-plus that forgets at every step what it has seen."""
    adapter = Adapter.load(file)
    act = adapter.act

    def forget_and_act(observation: Any) -> np.ndarray:
        adapter.reset(observation)
        return act(observation)

    adapter.act = forget_and_act
    return adapter


def measure(name: str, episodes: int) -> list[dict[str, Any]]:
    """Rows of the table: the test environments, then the training ones."""
    file = find(name)
    agent, family = load(file)
    adapters = {"adapts": agent, "ghost": load_ghost(file)}
    if isinstance(agent, BeliefAdapter):
        adapters["under its prior"] = under_prior(file)
    simulation, usual, rows = make_simulation(family), [dial.usual for dial in dials_of(family)], []
    for kind, split in (("test", family.test(0)), ("training", family.train(0))):
        for number, context in zip(split.numbers, split.contexts, strict=True):
            whole = np.array([*context, *usual[len(context) :]], np.float32)
            row: dict[str, Any] = {"family": name, "environment": int(number), "kind": kind}
            for who, adapter in adapters.items():
                player, worths = Player(adapter, simulation, objective_of(family), family.horizon), []
                for seed in range(FIRST_SEED, FIRST_SEED + episodes):
                    player.begin(whole, seed)
                    while not player.over:
                        player.step(whole)
                    worths.append(player.worth)
                row[who] = float(f"{np.mean(worths):.4g}")
            print(row, flush=True)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=FAMILIES)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "ghost.json")
    given = parser.parse_args()
    rows = [row for name in given.families for row in measure(name, given.episodes)]
    means = []
    for name in given.families:
        for kind in ("test", "training"):
            these = [row for row in rows if (row["family"], row["kind"]) == (name, kind)]
            who = [key for key in these[0] if key not in ("family", "environment", "kind")]
            worths = {key: float(f"{np.mean([row[key] for row in these]):.4g}") for key in who}
            ahead = sum(row["adapts"] > row["ghost"] for row in these)
            means.append({"family": name, "environments": kind, **worths, "ahead": f"{ahead} of {len(these)}"})
    about = {"command": shlex.join(["python", *sys.argv]), "processor": processor(), "episodes": given.episodes}
    found = {**about, "benchmarks": means, "environments": rows}
    given.out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
