"""How W's optimum fares in the training environments, by how returns are scaled for W.

    python benchmarks/ranges.py RUN FILE [MODEL [GAP]]

RUN is a trained run with an adapter. Embeddings are scored once in all training environments; then W is trained on
them anew, without aggregation, for each way to scale returns, and its optimum is played there. With GAP, W does not
learn from so many neighbouring environments, a third of a circle say, and its optimum is played in these too. Test
environments are not played.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import ValueOptions, from_dict
from pdvf.core import fitting as fit
from pdvf.core.arrays import Array
from pdvf.core.devices import shard_over_devices, use_all_cores
from pdvf.experiment.provenance import describe_environment
from pdvf.experiment.store import RunStore
from pdvf.paper import aggregate
from pdvf.paper.adapter import Adapter
from pdvf.paper.pipeline import PROBE_NOISE, Problem, artefact_shapes
from pdvf.paper.prober import Scores

KNOWN, BETWEEN, UNIFORM = 210, 120, 30
UPDATES = 2500
SEEDS = 3
EPISODES = 2
WAYS = tuple((own, power, high) for own in (False, True) for power, high in ((1.0, 0.9), (4.0, 0.5), (8.0, 0.5)))


def score(problem: Problem, adapter: Adapter, options: ValueOptions, key: Array) -> Scores:
    """Embeddings of training policies, between them and from everywhere, in all training environments."""
    keys = jax.random.split(key, 4)
    bank = adapter.train_z_pi
    known = bank[jax.random.randint(keys[0], (KNOWN,), 0, bank.shape[0])]
    extra = aggregate.extra_embeddings(bank, replace(options, interpolations=BETWEEN, uniform=UNIFORM), keys[1])
    z_pi = jax.random.permutation(keys[2], jnp.concatenate([known, extra]))
    contexts = jnp.asarray(problem.contexts)

    def rows(body, split):
        return jax.vmap(lambda z, k: body.score(problem.engine, contexts, z, k, PROBE_NOISE, chunk=30))(*split)

    halves = z_pi.reshape(2, -1, z_pi.shape[-1])
    scores = shard_over_devices(rows)(adapter.body, (halves, jax.random.split(keys[3])))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), scores)


def optimum(problem: Problem, adapter: Adapter, scores: Scores, options: ValueOptions, key: Array) -> Array:
    """Returns [E] of the optimum of a W that has learned from the scores, which may lack some environments."""
    keys = jax.random.split(key, 4)
    sizes = adapter.train_z_d.shape[-1], scores.z_pi.shape[-1]
    members = aggregate.make_members(adapter.body.dynamics.observation, *sizes, options, keys[0])
    optimiser = aggregate.value_optimiser(options, UPDATES)
    scale = aggregate.ReturnScale.of(scores.returns, options)
    nothing = jnp.zeros((), jnp.int32)

    def loss(members: Any, key: Array, held_out: bool = False) -> Array:
        return aggregate.value_loss(members, scores, scores, nothing, scale, options, key, held_out)

    begun = fit.start(members, optimiser, keys[1])
    trained, _ = fit.advance(begun, optimiser, loss, lambda m, k: loss(m, k, True), UPDATES)
    contexts = jnp.repeat(jnp.asarray(problem.contexts), EPISODES, axis=0)
    probed = adapter.body.begin(problem.engine, contexts, keys[2])
    z_pi, _ = aggregate.optimal_embeddings(trained.model, probed.s0, probed.z_d)
    returns = adapter.body.finish(problem.engine, contexts, probed, z_pi, keys[3])[0]
    return jnp.mean(returns.reshape(-1, EPISODES), axis=1)


def without(scores: Scores, out: np.ndarray) -> Scores:
    """The scores in the environments that are not left out."""
    kept = np.setdiff1d(np.arange(scores.returns.shape[1]), out)
    return scores._replace(s0=scores.s0[:, kept], z_d=scores.z_d[:, kept], returns=scores.returns[:, kept])


def main(run: str, file: str, model: int = 0, gap: int = 0) -> None:
    use_all_cores()
    store = RunStore.open(Path(run))
    problem = Problem(from_dict(store.config))
    adapters = store.load("adapter", artefact_shapes(problem)["adapter"])
    adapter = jax.tree.map(lambda x: x[model], adapters)
    options = replace(problem.config.value, members=8)
    scores = score(problem, adapter, options, jax.random.key(0))
    returns = np.asarray(scores.returns)
    best = np.sort(returns.mean(axis=1))[-20:].mean()
    found: dict[str, Any] = {
        "spread of environments": round(float(returns.mean(axis=0).std()), 2),
        "spread of embeddings within an environment": round(float(returns.std(axis=0).mean()), 2),
        "mean of the 20 best embeddings": round(float(best), 2),
    }
    print(found, flush=True)
    count = returns.shape[1]
    gaps = [np.arange(first, first + gap) for first in range(0, count - gap + 1, gap)] if gap else [np.arange(0)]
    for own, power, high in WAYS:
        way = replace(options, own_range=own, power=power, high_return=high)
        play = jax.jit(lambda scores, key, way=way: optimum(problem, adapter, scores, way, key))
        name = f"{'own range' if own else 'one range'}, power {power:g}, high_return {high:g}"
        inside, left_out = [], []
        for seed in range(SEEDS):
            played = [np.asarray(play(without(scores, out), jax.random.key(seed)), float) for out in gaps]
            inside.append(np.mean([np.delete(r, out).mean() for r, out in zip(played, gaps, strict=True)]))
            left_out += [r[out].mean() for r, out in zip(played, gaps, strict=True) if gap]
        found[name] = np.round(inside, 2).tolist()
        if gap:
            found[f"{name}, left out"] = np.round(left_out, 2).tolist()
        print(name, found[name], found.get(f"{name}, left out", ""), flush=True)
    given = f"{model} {gap}" if gap else f"{model}"
    about = describe_environment(f"python benchmarks/ranges.py RUN FILE {given} ({problem.config.family})")
    Path(file).write_text(json.dumps({"optimum of W": found, "environment": about}, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4, 5):
        sys.exit("usage: python benchmarks/ranges.py RUN FILE [MODEL [GAP]]")
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
