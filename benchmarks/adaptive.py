"""PD-VF-plus, PPOall and Oracle where training environments are left out: no test environment is simulated.

python benchmarks/adaptive.py ant-wind --left-out 5 6 7 8 9 --out adaptive.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

from pdvf.config import BUDGETS, with_options
from pdvf.config.presets import preset
from pdvf.methods import METHODS, agent_artefact, play_everywhere
from pdvf.paper.problem import Problem, Stream


class LeftOut(Problem):
    """A problem without some of its training environments; these are where it is judged."""

    def __init__(self, config, left_out):
        super().__init__(config)
        whole = Problem(config).contexts
        kept = np.setdiff1d(np.arange(len(whole)), left_out)
        self.__dict__["contexts"] = whole[kept]
        self.__dict__["everywhere"] = np.concatenate([whole[kept], whole[list(left_out)]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family")
    parser.add_argument("--method", default="pd-vf-plus")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--budget", default="equal", choices=BUDGETS)
    parser.add_argument("--left-out", type=int, nargs="*", default=[])
    parser.add_argument(
        "--test", action="store_true", help="train on all training environments, judge in the test ones"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--option", nargs=2, action="append", default=[])
    parser.add_argument("--seconds", type=float, default=1e9, help="no stage begins after this")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    options = {name: json.loads(value) for name, value in given.option}
    config = with_options(
        preset(given.family, given.preset, given.budget), {"policy_seeds": given.seeds, "seed": given.seed} | options
    )
    problem = Problem(config) if given.test else LeftOut(config, given.left_out)
    count = problem.contexts.shape[0]
    method = METHODS[given.method]
    training = method.train(problem, {}, problem.key(Stream.METHODS))
    judge = jax.jit(
        lambda agents: play_everywhere(
            problem.engine, agents, problem.everywhere, 10, method.privileged, problem.key(Stream.EVALUATION)
        )["honest"]
    )
    began, rows = time.time(), []
    state, total = training.start(), 0.0
    for stage in range(training.stages):
        state, metrics = training.advance(state, stage)
        total += float(metrics["steps"])
        returns = np.asarray(judge(training.finish(state)[agent_artefact(given.method)]))
        seconds = {"seconds": round(time.time() - began, 1), "cpu_seconds": round(time.process_time(), 1)}
        row = {"stage": stage, **seconds, "steps": total}
        row |= {name: round(float(value), 4) for name, value in metrics.items() if name != "steps"}
        row |= {
            "training": returns[:, :count].mean((1, 2)).round(3).tolist(),
            "left_out": returns[:, count:].mean((1, 2)).round(3).tolist(),
            "each": returns[:, count:].mean((0, 2)).round(3).tolist(),
        }
        rows.append(row)
        print(given.family, given.method, json.dumps(row), flush=True)
        if given.out:
            record = {
                "command": vars(given) | {"out": str(given.out)},
                "device": jax.devices()[0].device_kind,
                "rows": rows,
            }
            given.out.write_text(json.dumps(record, indent=1))
        if time.time() - began > given.seconds:
            break


if __name__ == "__main__":
    main()
