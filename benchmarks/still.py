"""Does doing nothing tell more than z_d? PD-VF-plus by experience with and without `plus.still`, where left out.

python benchmarks/still.py RUN SIZE [OUT.json]

RUN needs the phases `train` to `embed`. SIZE neighbouring training environments at a time are left out with their
policies, PD-VF-plus is made from the others and plays there. The encoder of z_d has seen them all the same; the
discriminant has not. "Best in hindsight" is the maximum of the very episodes that it is judged by, so it is a little
high. No test environment is played.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import from_dict
from pdvf.core.devices import use_all_cores
from pdvf.experiment.store import RunStore
from pdvf.methods.experienced import train_by_experience
from pdvf.methods.multitask_ppo import bodies
from pdvf.methods.play import play_everywhere
from pdvf.paper.pipeline import Problem, artefact_shapes, finished_policies, transfer

EPISODES = 4
"""Of every policy in every environment to choose by, and of every choice to judge it by."""
MODELS = 2


class Known(eqx.Module):
    """What the method needs of an adapter."""

    body: Any
    train_z_d: Any


def main() -> None:
    """One run."""
    use_all_cores()
    run, size = Path(sys.argv[1]), int(sys.argv[2])
    store = RunStore.open(run)
    whole = Problem(from_dict(store.config))
    shapes = artefact_shapes(whole)
    inputs = {name: store.load(name, shapes[name]) for name in ("policies", "dynamics", "policy")}
    policies, contexts = inputs["policies"], np.asarray(whole.contexts)
    body = bodies(Problem(replace(whole.config, policy_seeds=MODELS)), inputs)
    look = jax.jit(jax.vmap(lambda b, key: b.begin(whole.engine, jnp.asarray(contexts), key).z_d))
    z_d = look(body, jax.random.split(jax.random.key(53), MODELS))  # [MODELS, E, d]
    numbers = whole.engine.family.train(whole.config.seed).numbers
    count, seeds = contexts.shape[0], policies.log_std.shape[2]
    many = jnp.repeat(jnp.asarray(contexts), EPISODES, axis=0)
    played = jax.jit(lambda a: transfer(whole.engine, many, a, jax.random.key(50)))(finished_policies(policies))
    known = np.asarray(played).reshape(count * seeds, count, EPISODES).mean(axis=-1)  # [P, E]
    home = np.repeat(np.arange(count), seeds)
    key = jax.random.key(51)
    play = jax.jit(lambda agents, there: play_everywhere(whole.engine, agents, there, EPISODES, False, key)["honest"])
    scores: dict[str, list[float]] = {}

    def score(name: str, values: Any) -> None:
        scores.setdefault(name, []).extend(float(v) for v in values)

    left_out = [np.arange(first, first + size) for first in range(0, count - size + 1, max(size // 2, 1))]
    for out in left_out:
        others = np.setdiff1d(np.arange(count), out)
        left = known[np.isin(home, others)]
        score("best single", left[left[:, others].mean(axis=1).argmax()][out])
        score("best in hindsight", left[:, out].max(axis=0))
        inputs = {
            "policies": jax.tree.map(lambda x, others=others: x[-1:, others], policies),
            "adapter": Known(body, z_d[:, others]),
        }
        for still in (False, True):
            plus = replace(whole.config.plus, still=still, generalist=False, episodes=EPISODES)
            problem = Problem(replace(whole.config, model_seeds=MODELS, plus=plus))
            vars(problem)["contexts"] = contexts[others]
            training = train_by_experience(problem, inputs, jax.random.key(52))
            agents = training.finish(training.advance(training.start(), 0)[0])["agent-pd-vf-plus"]
            found = np.asarray(play(agents, jnp.asarray(contexts[out])))
            score("by doing nothing" if still else "by z_d", found.mean(axis=(0, 2)))
        print(
            [numbers[e] for e in out],
            {name: round(float(np.mean(values[-size:])), 1) for name, values in scores.items()},
            flush=True,
        )
    result = {
        "command": f"python benchmarks/still.py {run.name} {size}",
        "family": whole.engine.family.name,
        "left out": [f"{numbers[out[0]]}-{numbers[out[-1]]}" for out in left_out],
        "mean return there": {name: round(float(np.mean(values)), 1) for name, values in scores.items()},
    }
    print(json.dumps(result, indent=2))
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
