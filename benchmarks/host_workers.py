"""Users' environments in worker processes: what they cost where a step is cheap, what they save where it is slow.

    python benchmarks/host_workers.py      writes benchmarks/results/host_workers.json

`peer` is a plain loop over as many environments in one process, without JAX and the engine; `chosen` is the number of
workers that the engine takes by itself. Each number is the best of several tries, in environment steps per second.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

HERE = Path(__file__).parent


class Busy(gymnasium.Env):
    """A step that computes for 2 ms."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, context):
        self.force = context["force"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=1)
        return self.place.astype(np.float32), {}

    def step(self, action):
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        self.place = 0.9 * self.place + action + self.force
        return self.place.astype(np.float32), float(self.place[0]), False, False, {}


def busy() -> Any:
    from pdvf.families import GymFamily

    return GymFamily("busy", Busy, [{"force": 0.1}, {"force": 0.2}], [{"force": 0.3}], horizon=50)


def pendulum() -> Any:
    sys.path.append(str(HERE.parent / "examples"))
    import pendulum

    return pendulum.family


def player(family: Any, batch: int, steps: int):
    """A program that plays `batch` episodes of `steps` with the host engine."""
    import jax
    import jax.numpy as jnp

    from pdvf.engines import make_engine

    engine, box = make_engine(family), family.action
    known = family.train(0).contexts
    contexts = jnp.asarray(known[np.arange(batch) % len(known)])

    @jax.jit
    def play(key):
        start_key, action_key = jax.random.split(key)
        states, _ = engine.reset(jax.random.split(start_key, batch), contexts)
        actions = jax.random.uniform(action_key, (steps, batch, box.size), minval=box.low, maxval=box.high)

        def step(states, action):
            states, outcome = engine.step(contexts, states, action)
            return states, outcome.reward.sum()

        return jax.lax.scan(step, states, actions)[1]

    keys = map(jax.random.key, itertools.count())
    return lambda: jax.block_until_ready(play(next(keys)))


def loop(family: Any, batch: int, steps: int):
    """The same without engine and processes."""
    known, rng = (*family.train_contexts,), np.random.default_rng(0)
    environments = [family.make_env(dict(known[i % len(known)])) for i in range(batch)]
    box = family.action

    def play():
        for environment in environments:
            environment.reset(seed=0)
        for _ in range(steps):
            for environment, action in zip(
                environments, rng.uniform(box.low, box.high, (batch, box.size)), strict=True
            ):
                environment.step(action.astype(np.float32))

    return play


def best(plays: dict[str, Any], count: int, repeats: int) -> dict[str, float]:
    """The best rate of each, tried in turn: the machine may be busy with other things for a while."""
    seconds = dict.fromkeys(plays, float("inf"))
    for play in plays.values():
        play()
    for _ in range(repeats):
        for name, play in plays.items():
            began = time.perf_counter()
            play()
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return {name: round(count / least, 1) for name, least in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "host_workers.json")
    given = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    entries = []
    for name, family, batch, steps in (
        ("pendulum", pendulum(), 64, 100),
        ("pendulum", pendulum(), 512, 50),
        ("2 ms a step", busy(), 64, 10),
    ):
        families = {"chosen": family} | {f"workers {n}": replace(family, workers=n) for n in (1, 2)}
        plays = {"peer": loop(family, batch, steps)}
        plays |= {key: player(made, batch, steps) for key, made in families.items()}
        rates = best(plays, batch * steps, given.repeats)
        ratio = round(rates["workers 2"] / rates["workers 1"], 2)
        entries.append({"name": name, "batch": batch, "unit": "environment steps/s", **rates, "ratio 2 to 1": ratio})
        for made in families.values():
            made.pool.close()
        print(json.dumps(entries[-1]), flush=True)
    result = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("pdvf", "jax", "gymnasium", "numpy")},
        "command": f"python benchmarks/host_workers.py --repeats {given.repeats}",
        "repeats": given.repeats,
        "load before": round(LOAD, 2),
        "benchmarks": entries,
    }
    given.out.write_text(json.dumps(result, indent=2) + "\n")


LOAD = os.getloadavg()[0]

if __name__ == "__main__":
    main()
