"""PD-VF in its training environments with two probes: the one it was trained with, and that of `probe_policy`.

    python benchmarks/probe.py RUN FILE

RUN is a trained run with policies and adapter; test environments are not played. The adapter keeps what it learned
with its own probe, so the other one has the harder part.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import from_dict
from pdvf.core.devices import use_all_cores
from pdvf.experiment.provenance import describe_environment
from pdvf.experiment.store import RunStore
from pdvf.paper.adapter import adapt_episodes
from pdvf.paper.pipeline import Problem, artefact_shapes
from pdvf.paper.probe import SOON, lost_beginnings, probe_policy

EPISODES = 8


def main(run: str, out: str) -> None:
    use_all_cores()
    store = RunStore.open(Path(run))
    problem = Problem(from_dict(store.config))
    shapes = artefact_shapes(problem)
    policies, adapters = (store.load(name, shapes[name]) for name in ("policies", "adapter"))
    family, models = problem.engine.family, adapters.train_z_d.shape[0]
    contexts = jnp.repeat(jnp.asarray(problem.contexts), EPISODES, axis=0)
    play = jax.jit(jax.vmap(lambda a, key: adapt_episodes(problem.engine, a, contexts, key, key)))
    found = {}
    own = jax.tree.map(lambda x: x[0], adapters.body.probe)
    for name, probe in (("own", own), ("safe", probe_policy(problem, policies))):
        lost = lost_beginnings(problem, jax.tree.map(lambda x: x[None], probe), jnp.asarray(jnp.inf))
        many = jax.tree.map(lambda x: jnp.broadcast_to(x, (models, *x.shape)), probe)
        changed = eqx.tree_at(lambda a: a.body.probe, adapters, many)
        played = play(changed, jax.random.split(jax.random.key(1), models))
        returns = np.asarray(played.returns).reshape(models, -1, EPISODES)
        soon = np.asarray(jnp.sum(played.steps.valid, axis=1)) < SOON * family.horizon
        found[name] = {
            "share of beginnings that the probe ends": round(float(lost[0]), 4),
            "share of PD-VF's episodes that end soon": round(float(soon.mean()), 4),
            "return of PD-VF": round(float(returns.mean()), 2),
            "return of PD-VF by environment": returns.mean(axis=(0, 2)).round(1).tolist(),
        }
        print(name, found[name], flush=True)
    command = f"python benchmarks/probe.py RUN ({problem.config.family}), {EPISODES} episodes, {models} models"
    about = describe_environment(command)
    Path(out).write_text(json.dumps({"family": family.name, "probes": found, "environment": about}, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python benchmarks/probe.py RUN FILE")
    main(*sys.argv[1:])
