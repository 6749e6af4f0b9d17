"""What PD-VF-plus infers in contexts it was not trained in, and whether it sees that others are out of its range.

python benchmarks/identification.py spaceship
python benchmarks/identification.py examples/pendulum.py:family --beyond '[{"gravity": 25, "mass": 1, "gain": 1}]'

Trains a small PD-VF-plus, plays in unseen contexts and in those `--beyond` the range, and writes R^2 of the true
context after 1, 16 and 64 steps, the area under the ROC curve of the out-of-distribution number at the end of an
episode, and the share of episodes inside the range that are called out of it. With `--left-out` training environments
are the unseen ones and no test environment is simulated: that is for development. A context is inside the range if each
of its numbers is between the least and the greatest of training.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.metrics import roc_auc_score

from pdvf.config import Config, to_dict, with_options
from pdvf.config.presets import preset
from pdvf.engines import HostEngine, make_engine
from pdvf.experiment.adaptation import adaptation_artefact, measure
from pdvf.experiment.provenance import describe_environment
from pdvf.families import make_family
from pdvf.methods import METHODS, agent_artefact
from pdvf.methods.adaptive import NAME
from pdvf.paper.problem import Problem, Stream
from pdvf.reports.adaptation import summarise

STEPS = (1, 16, 64)


class Extended(Problem):
    """A problem with contexts beyond its range; training environments that are left out become the unseen ones."""

    def __init__(self, config: Config, left_out: list[int], beyond: list[dict[str, float]]):
        super().__init__(config)
        family = make_family(config.family, config.environment)
        names, train = family.context_names, family.train(config.seed)
        kept = ~np.isin(train.numbers, left_out)
        unseen = train.contexts[~kept] if left_out else family.test(config.seed).contexts
        far = np.array([[context[name] for name in names] for context in beyond], np.float32).reshape(-1, len(names))
        engine = make_engine(family, config.engine, config.seed)
        if isinstance(engine, HostEngine):
            engine = replace(engine, contexts=(*engine.contexts, *map(tuple, far.tolist())))
        self.__dict__["engine"] = engine
        self.__dict__["contexts"] = train.contexts[kept]
        self.__dict__["everywhere"] = np.concatenate([train.contexts[kept], unseen, far])


def report(problem: Problem, arrays: dict[str, np.ndarray], beyond: int) -> dict[str, Any]:
    """What was found, with R^2 by the name of the hidden number."""
    train, contexts = problem.contexts.shape[0], problem.judged
    inside = np.all((contexts >= problem.contexts.min(0)) & (contexts <= problem.contexts.max(0)), axis=1)
    unseen = np.arange(len(contexts)) >= train
    far = np.arange(len(contexts)) >= len(contexts) - beyond
    known = arrays | {"contexts": contexts[~far], "codes": arrays["codes"][:, :, ~far]}
    found = summarise(NAME, problem.engine.family.context_names, known)
    row: dict[str, Any] = {
        "steps": list(found.steps),
        "r2_left_out": {name: np.round(x, 4).tolist() for name, x in found.known.items()},
        "r2_unseen": {name: np.round(x, 4).tolist() for name, x in found.unseen.items()},
        "verdict": found.sentence(),
    }
    novelty = arrays["out_of_distribution"]  # [S, E, J]
    row["out_of_distribution"] = [
        {"context": c.tolist(), "quantiles": np.quantile(n, [0, 0.5, 1]).round(3).tolist()}
        for c, n in zip(contexts, np.moveaxis(novelty, 1, 0), strict=True)
    ]
    like_training = novelty[:, unseen & inside & ~far].ravel()
    row["false_alarms"] = {
        "training": float((novelty[:, ~unseen] > 1).mean()),
        "unseen, inside": float((like_training > 1).mean()) if like_training.size else None,
    }
    if beyond:
        apart = novelty[:, far].ravel()
        truth = np.concatenate([np.zeros(like_training.size), np.ones(apart.size)])
        row["auroc"] = float(roc_auc_score(truth, np.concatenate([like_training, apart])))
        row["found"] = float((apart > 1).mean())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--left-out", type=int, nargs="*", default=[], help="numbers of training environments")
    parser.add_argument("--beyond", type=json.loads, default=[], help="contexts by name, as JSON")
    parser.add_argument("--option", nargs=2, action="append", default=[], metavar=("NAME", "JSON"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    config = with_options(
        preset(given.family, given.preset),
        {"seed": given.seed, "policy_seeds": given.seeds} | {name: json.loads(value) for name, value in given.option},
    )
    problem, method = Extended(config, given.left_out, given.beyond), METHODS[NAME]
    training = method.train(problem, {}, problem.key(Stream.METHODS))
    began, state, steps = time.time(), training.start(), 0.0
    for stage in range(training.stages):
        state, metrics = training.advance(state, stage)
        steps += float(metrics["steps"])
        said = {name: round(float(value), 4) for name, value in metrics.items()}
        print(stage, f"{time.time() - began:.0f} s", json.dumps(said), file=sys.stderr, flush=True)
    agents = training.finish(state)[agent_artefact(NAME)]
    made, _ = measure(problem, method, agents, STEPS).advance({}, 0)
    arrays = {name: np.asarray(x) for name, x in made[adaptation_artefact(NAME)].items()}
    found = report(problem, arrays, len(given.beyond))
    record = {
        **describe_environment(f"python {shlex.join(sys.argv)}"),
        "seconds": round(time.time() - began),
        "environment_steps": steps,
        **found,
        "config": to_dict(config),
    }
    name = given.family.removesuffix(":family").split("/")[-1].removesuffix(".py")
    out = given.out or Path(__file__).parent / "results" / f"identification_{name}.json"
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    main()
