"""What PD-VF-plus infers in contexts it was not trained in, and whether it sees that others are out of its range.

python benchmarks/identification.py spaceship
python benchmarks/identification.py examples/pendulum.py:family --beyond '[{"gravity": 25, "mass": 1, "gain": 1}]'
python benchmarks/identification.py ant-wind --packaged

Trains a small PD-VF-plus, or takes the packaged model and its runtime without JAX, plays in unseen contexts and those
`--beyond` the range, and writes R^2 of the true context after 1, 16 and 64 steps, the area under the ROC curve of the
out-of-distribution number at the end of an episode, and the share of episodes inside the range that are called out of
it. A context is inside the range if each of its numbers is between the least and the greatest of training; where no
unseen one is, those of training stand for them. With `--left-out` training environments are the unseen ones and no test
environment is simulated: that is for development. Beyond the range of a packaged model, numbers have the names of the
dials of `pdvf play`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import roc_auc_score

from pdvf.adapt.model import OUTLIER
from pdvf.config import Config, to_dict, with_options
from pdvf.config.presets import preset
from pdvf.core.objective import objective_of
from pdvf.deploy.pretrained import find, load
from pdvf.engines import HostEngine, make_engine
from pdvf.engines.base import settable
from pdvf.experiment.adaptation import EPISODES, adaptation_artefact, measure
from pdvf.experiment.provenance import describe_environment
from pdvf.families import make_family
from pdvf.live.session import Player, dials_of, make_simulation
from pdvf.methods import METHODS, agent_artefact
from pdvf.methods.adaptive import NAME
from pdvf.paper.problem import Problem, Stream
from pdvf.reports.adaptation import summarise
from pdvf.reports.readouts import identified, overall

STEPS = (1, 16, 64)
STATES, MOMENTS = 64, 50
"""Episodes with random actions, and their first steps, in which the effect is taken as it is."""


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


class Seen(NamedTuple):
    """What was inferred in contexts [E, c], those of training first, and how novel the episodes were."""

    contexts: np.ndarray
    train: int
    steps: tuple[int, ...]
    codes: np.ndarray  # [S, k, E, J, d] after so many steps
    novelty: np.ndarray  # [S, E, J]
    about: dict[str, Any]


def trained(config: Config, left_out: list[int], beyond: list[dict[str, float]]) -> Seen:
    """By agents that are trained here."""
    problem, method = Extended(config, left_out, beyond), METHODS[NAME]
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
    about = {
        "seconds": round(time.time() - began),
        "environment_steps": steps,
        "r2_exact": exact_r2(problem, len(beyond), config.plus.code),
        "verdict": summarise(NAME, problem.engine.family.context_names, arrays).sentence(),
        "config": to_dict(config),
    }
    train, asked = problem.contexts.shape[0], tuple(arrays["steps"].tolist())
    return Seen(problem.judged, train, asked, arrays["codes"], arrays["out_of_distribution"], about)


def exact_r2(problem: Problem, beyond: int, numbers: int) -> dict[str, float] | None:
    """R^2 of unseen contexts as they are read off the belief's mean, but from the effect as it is.

    The simulator makes the same steps in all contexts. What differs is summed up by principal components in training
    contexts, so many of them at most; that number of components counts which is best in training environments left out.
    Where these components say as much as a learned code, no belief can do better by much.
    """
    engine, train = problem.engine, problem.contexts.shape[0]
    if not settable(engine):
        return None
    contexts = problem.judged[: len(problem.judged) - beyond]
    here = jnp.asarray(contexts[np.arange(STATES) % train])
    reset_key, act_key = jax.random.split(jax.random.key(0))
    state, observation = engine.reset(jax.random.split(reset_key, STATES), here)
    box, step, changes = engine.family.action, jax.jit(engine.step), []
    for key in jax.random.split(act_key, min(MOMENTS, engine.family.horizon)):
        action = jax.random.uniform(key, (STATES, box.size), minval=box.low, maxval=box.high)
        made = [step(jnp.broadcast_to(jnp.asarray(c), here.shape), state, action)[1].observation for c in contexts]
        changes.append(np.stack(made) - np.asarray(observation))
        state, outcome = step(here, state, action)
        observation = outcome.observation
    apart = np.concatenate(changes, axis=1)  # [E, N, o]
    apart = apart - apart[:train].mean(0)
    scaled = np.clip(apart / (apart[:train].std((0, 1)) + 1e-9), -OUTLIER, OUTLIER).reshape(len(contexts), -1)
    directions = np.linalg.svd(scaled[:train], full_matrices=False)[2]
    names, directions = engine.family.context_names, directions[:numbers]
    scores = [identified(names, contexts, (scaled @ directions[: k + 1].T)[:, None], train) for k in range(numbers)]
    return max(scores, key=lambda both: overall(both[0]))[1]


def packaged(name: str, beyond: list[dict[str, float]]) -> Seen:
    """By the model of this name that comes with the package."""
    adapter, family = load(find(name))
    simulation, dials = make_simulation(family), dials_of(family)
    train, unseen = (split.contexts for split in (family.train(0), family.test(0)))
    usual = np.array([dial.usual for dial in dials], np.float32)
    known = np.concatenate([train, unseen])
    inside = np.concatenate([known, np.tile(usual[known.shape[1] :], (len(known), 1))], axis=1)
    far = np.array([[context[dial.name] for dial in dials] for context in beyond], np.float32).reshape(-1, len(dials))
    contexts = np.concatenate([inside, far])
    player = Player(adapter, simulation, objective_of(family), family.horizon)
    codes, novelty = [], []
    for context in contexts:
        for seed in range(EPISODES):
            player.begin(context, seed)
            means = []
            while not player.over:  # an agent's first action comes before it has seen a step
                player.step(context)
                means.append(adapter.inferred["mean"])
            codes.append([means[min(k, len(means) - 1)] for k in STEPS])
            novelty.append(adapter.inferred["out_of_distribution"])
    shaped = np.moveaxis(np.array(codes).reshape(len(contexts), EPISODES, len(STEPS), -1), 2, 0)
    about = {"model": name, "episodes": EPISODES}
    return Seen(contexts, len(train), STEPS, shaped[None], np.array(novelty).reshape(1, len(contexts), -1), about)


def report(names: Sequence[str], seen: Seen, beyond: int) -> dict[str, Any]:
    """What was found, with R^2 by the name of the hidden number."""
    contexts, train, novelty = seen.contexts, seen.train, seen.novelty
    inside = np.all((contexts >= contexts[:train].min(0)) & (contexts <= contexts[:train].max(0)), axis=1)
    unseen = np.arange(len(contexts)) >= train
    far = np.arange(len(contexts)) >= len(contexts) - beyond
    known, codes = contexts[~far, : len(names)], seen.codes[:, :, ~far]

    def mean(scores: list[list[dict[str, float]]]) -> dict[str, list[float]]:
        """Over seeds [S][k], by name."""
        return {name: np.round(np.mean([[k[name] for k in s] for s in scores], 0), 4).tolist() for name in scores[0][0]}

    scores = [[identified(names, known, code, train) for code in seed] for seed in codes]
    row: dict[str, Any] = {
        "steps": list(seen.steps),
        "r2_left_out": mean([[left_out for left_out, _ in seed] for seed in scores]),
        "r2_unseen": mean([[unseen for _, unseen in seed] for seed in scores]),
    }
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
        within, apart = like_training if like_training.size else novelty[:, ~unseen].ravel(), novelty[:, far].ravel()
        truth = np.concatenate([np.zeros(within.size), np.ones(apart.size)])
        row["auroc"] = float(roc_auc_score(truth, np.concatenate([within, apart])))
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
    parser.add_argument("--packaged", action="store_true", help="the model that comes with the package")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.packaged:
        family, seen = load(find(given.family))[1], packaged(given.family, given.beyond)
    else:
        options = {"seed": given.seed, "policy_seeds": given.seeds}
        options |= {name: json.loads(value) for name, value in given.option}
        config = with_options(preset(given.family, given.preset), options)
        family = make_family(config.family, config.environment)
        seen = trained(config, given.left_out, given.beyond)
    found = report(family.context_names, seen, len(given.beyond))
    record = {**describe_environment(f"python {shlex.join(sys.argv)}"), **found, **seen.about}
    name = given.family.removesuffix(":family").split("/")[-1].removesuffix(".py")
    out = given.out or Path(__file__).parent / "results" / f"identification_{name}.json"
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    main()
