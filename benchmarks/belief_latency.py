"""Latency of PD-VF-plus in the NumPy runtime at the ant's size, beside a plain network of NumPy in the same run.

python benchmarks/belief_latency.py [--out FILE]     writes benchmarks/results/belief_latency.json

`act` takes in the last step, brings the belief up to date and acts; `plain network` is the policy's network alone, fed
with an array of the right size. Both are medians over calls that take turns, on one core, with weights at random.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from threadpoolctl import threadpool_limits

from pdvf.adapt.model import make_model
from pdvf.core.arrays import Box
from pdvf.deploy.export import export
from pdvf.deploy.runtime import Adapter
from pdvf.families import make_family
from pdvf.methods.adaptive import BeliefAgent
from pdvf.rl.networks import make_actor_critic

LIMIT = 200.0  # microseconds
SIZES = ((4, 128), (8, 256))  # numbers of the code, width of both networks


def random_adapter(code: int, width: int) -> Adapter:
    """An exported and loaded model for Ant-wind that nobody has trained."""
    family = make_family("ant-wind")
    keys = jax.random.split(jax.random.key(0), 3)
    box = family.observation
    unbounded = np.full(2 * code, np.inf, np.float32)
    seen = Box(np.concatenate([box.low, -unbounded]), np.concatenate([box.high, unbounded]))
    model = make_model(box.size, family.action.size, 1, 5, code, width, keys[0])
    model = eqx.tree_at(lambda m: m.frame, model, jax.random.normal(keys[1], (code, code)))
    actor, _ = make_actor_critic(seen, family.action, width, keys[2])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pdvf"
        file.write_bytes(export(BeliefAgent(actor, model), family, {}))
        return Adapter.load(file)


def plain_network(inputs: int, width: int, outputs: int) -> Callable[[np.ndarray], np.ndarray]:
    """Two tanh layers and a linear one, as short as NumPy has them."""
    rng = np.random.default_rng(0)
    sizes = (inputs, width, width, outputs)
    layers = [
        (rng.normal(size=(after, before), scale=before**-0.5).astype(np.float32), np.zeros(after, np.float32))
        for before, after in pairwise(sizes)
    ]
    (w0, b0), (w1, b1), (w2, b2) = layers
    return lambda x: w2 @ np.tanh(w1 @ np.tanh(w0 @ x + b0) + b1) + b2


def measure(code: int, width: int, rounds: int = 20, steps: int = 200) -> dict[str, Any]:
    """Medians in microseconds over episodes of observations at random."""
    adapter = random_adapter(code, width)
    o, a = adapter.observation_size, adapter.action_size
    network = plain_network(o + 2 * code, width, a)
    rng = np.random.default_rng(1)
    ours, peer = [], []
    for _ in range(rounds):
        observations = rng.normal(size=(steps, o))
        inputs = rng.normal(size=(steps, o + 2 * code)).astype(np.float32)
        adapter.reset(observations[0])
        ours += _seconds(adapter.act, observations)
        peer += _seconds(network, inputs)
    act, plain = 1e6 * statistics.median(ours), 1e6 * statistics.median(peer)
    return {
        "name": f"ant-wind: PD-VF-plus, code {code}, width {width}",
        "act": round(act, 1),
        "90th percentile": round(1e6 * float(np.quantile(ours, 0.9)), 1),
        "limit": LIMIT,
        "plain network": round(plain, 1),
        "act / plain network": round(act / plain, 1),
        "unit": "µs",
    }


def _seconds(call: Callable[[np.ndarray], Any], rows: np.ndarray) -> list[float]:
    found = []
    for row in rows:
        began = time.perf_counter()
        call(row)
        found.append(time.perf_counter() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "belief_latency.json")
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with threadpool_limits(1):
        rows = [measure(*sizes) for sizes in SIZES]
    given.out.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
