"""Throughput and latency, each beside a peer measured in the same run: `make bench`.

    python benchmarks/bench.py            on a CPU, one core: writes benchmarks/results/cpu.json
    python benchmarks/bench.py --gpu      the ensemble on a GPU: writes benchmarks/results/h200.json (or --out FILE)

Each entry is {name, ours, peer, ratio, unit}; `peer` of a latency or of a rate without a rival is the limit we set.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent


def ensemble_rate(policies: int, updates: int, repeats: int, name: str = "spaceship", preset_name="paper") -> float:
    """Environment steps per second of the whole PPO loop for an ensemble, after compilation."""
    import jax
    import jax.numpy as jnp

    from pdvf.config.presets import preset
    from pdvf.engines import make_engine
    from pdvf.families import make_family
    from pdvf.rl import ppo

    config = preset(name, preset_name)
    family, options = make_family(config.family, config.environment), config.ppo
    engine = make_engine(family)
    known = family.train(0).contexts
    contexts = jnp.asarray(known[[i % len(known) for i in range(policies)]])
    keys = jax.random.split(jax.random.key(0), policies)
    state = jax.jit(jax.vmap(lambda c, k: ppo.initialise(engine, options, c, k)))(contexts, keys)

    @jax.jit
    def train(state, shuffle):
        return jax.vmap(lambda c, s: ppo.train(engine, options, c, s, shuffle, updates))(contexts, state)[0]

    state = jax.block_until_ready(train(state, jax.random.key(1)))
    rates = []
    for i in range(repeats):
        began = time.perf_counter()
        state = jax.block_until_ready(train(state, jax.random.key(i + 2)))
        rates.append(policies * updates * options.environments * options.rollout / (time.perf_counter() - began))
    return statistics.median(rates)


def rollout_rate(name: str, simulators: int, repeats: int) -> float:
    """Environment steps per second of `mujoco.rollout` alone: one call a step, random actions, in this thread.

    Episodes start anew every 50 steps, so that fallen ants, which are slow, are as rare as in training.
    """
    import mujoco
    import numpy as np
    from mujoco import rollout

    from pdvf.config.presets import preset
    from pdvf.families import make_family
    from pdvf.families.base import MujocoFamily
    from pdvf.families.mujoco import model

    family = make_family(name, preset(name, "paper").environment)
    assert isinstance(family, MujocoFamily)
    known = family.train(0).contexts
    models = [model(family, known[i % len(known)]) for i in range(simulators)]
    data, full = mujoco.MjData(models[0]), mujoco.mjtState.mjSTATE_FULLPHYSICS
    start = np.zeros(mujoco.mj_stateSize(models[0], full))
    mujoco.mj_getState(models[0], data, start, full)
    rng, skip, steps = np.random.default_rng(0), family.frame_skip, 50
    first = np.tile(start, (simulators, 1))
    first[:, 1:] += rng.uniform(-0.1, 0.1, first[:, 1:].shape)
    actions = rng.uniform(-1, 1, (steps, simulators, 1, family.action.size)).repeat(skip, axis=2)
    made, sensors = np.empty((simulators, skip, start.size)), np.empty((simulators, skip, 0))
    pool = rollout.Rollout(nthread=0)

    def episode() -> None:
        state = first
        for action in actions:
            pool.rollout(models, [data], state, action, nstep=skip, skip_checks=True, state=made, sensordata=sensors)
            state = np.ascontiguousarray(made[:, -1])

    episode()
    rates = []
    for _ in range(repeats):
        began = time.perf_counter()
        episode()
        rates.append(simulators * steps / (time.perf_counter() - began))
    return statistics.median(rates)


def sb3_rate(steps: int, name: str = "pdvf/Spaceship-v0") -> float:
    """The same settings with stable-baselines3's PPO on one thread."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO

    import pdvf  # noqa: F401  registers the id

    torch.set_num_threads(1)
    env = gymnasium.make(name)
    network = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh}
    model = PPO("MlpPolicy", env, n_steps=2048, batch_size=64, n_epochs=10, policy_kwargs=network, device="cpu")
    model.learn(2048)
    began = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.perf_counter() - began)


def random_adapter():
    """An adapter of Spaceship's preset `quick` with random weights, and its family."""
    import jax
    import numpy as np

    from pdvf.config.presets import preset
    from pdvf.paper.pipeline import Problem, artefact_shapes

    problem = Problem(replace(preset("spaceship", "quick"), model_seeds=1))
    shapes = artefact_shapes(problem)["adapter"]
    rng = np.random.default_rng(0)

    def draw(shape):  # positive where something may be divided by it
        numbers = rng.normal(size=shape.shape[1:], scale=0.1)
        return jax.numpy.asarray(numbers if numbers.ndim > 1 else np.abs(numbers) + 0.2, shape.dtype)

    adapter = jax.tree.map(draw, shapes)
    return adapter, problem.engine.family


def adaptation_latency(repeats: int = 300) -> float:
    """Median seconds from the last probing transition to the first adapted action of one environment."""
    import jax
    import numpy as np

    from pdvf.engines.rollout import Transitions

    adapter, _ = random_adapter()

    @jax.jit
    def adapt(adapter, s0, action, s1):
        step = Transitions(s0[None], action[None], jax.numpy.zeros(1), s1[None], jax.numpy.ones(1, bool))
        z_d = adapter.body.dynamics.encode(step)
        z_pi, _ = adapter.choose(s0, z_d)
        return adapter.body.decoder(s1, z_pi)

    s0, action, s1 = (np.asarray(x, np.float32) for x in ((2.5, 0.2), (0.1, 1.0), (2.51, 0.33)))
    jax.block_until_ready(adapt(adapter, s0, action, s1))
    return _median(lambda: np.asarray(adapt(adapter, s0, action, s1)), repeats)


def runtime_latency(repeats: int = 1000) -> tuple[float, float]:
    """Median seconds of `act` and of the selection step of the NumPy runtime, for the same adapter."""
    import numpy as np

    from pdvf.deploy.export import export
    from pdvf.deploy.runtime import Adapter

    adapter, family = random_adapter()
    with tempfile.NamedTemporaryFile(suffix=".pdvf") as file:
        file.write(export(adapter, family, {}))
        file.flush()
        runtime = Adapter.load(file.name)
    observation = np.array([2.5, 0.2], np.float32)
    runtime.reset(observation)
    for _ in range(5):
        runtime.act(observation)
    assert runtime.z_d is not None
    z_d = runtime.z_d
    return _median(lambda: runtime.act(observation), repeats), _median(
        lambda: runtime.select(observation, z_d), repeats
    )


def _median(call, repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def entry(name: str, ours: float, peer: float, unit: str, ratio: float) -> dict[str, object]:
    return {"name": name, "ours": round(ours, 6), "peer": round(peer, 6), "ratio": round(ratio, 2), "unit": unit}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.gpu:
        rate, limit = ensemble_rate(100, 20, 3), 7e6
        rows = [
            entry("spaceship: PPO, 100 policies, whole loop; peer = goal", rate, limit, "env steps/s", rate / limit)
        ]
        for name, goal in (("swimmer", 1.2e6), ("ant-wind", 4e5)):
            rate = ensemble_rate(100, 4, 3, name, "best")
            row = f"{name}: PPO, 100 policies, whole loop, preset best; peer = goal"
            rows.append(entry(row, rate, goal, "env steps/s", rate / goal))
        path = arguments.out or HERE / "results" / "h200.json"
    else:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core for both
        peer = sb3_rate(3 * 2048)
        ours = ensemble_rate(30, 3, 3)
        latency = adaptation_latency()
        act, select = runtime_latency()
        rows = [
            entry(
                "spaceship: PPO, whole loop, one core; peer = stable-baselines3", ours, peer, "env steps/s", ours / peer
            ),
            entry("spaceship: adaptation latency, one core; peer = limit", latency, 1e-3, "s", 1e-3 / latency),
            entry("spaceship: runtime in NumPy, act, one core; peer = limit", act, 1e-4, "s", 1e-4 / act),
            entry("spaceship: runtime in NumPy, selection, one core; peer = limit", select, 1e-3, "s", 1e-3 / select),
        ]
        for name, rival in (("swimmer", "Swimmer-v5"), ("ant-wind", "Ant-v5")):
            bare, peer = rollout_rate(name, 128, 5), sb3_rate(2 * 2048, rival)
            ours = ensemble_rate(8, 1, 5, name)
            what = f"{name}: PPO, whole loop, one core; peer ="
            rows.append(entry(f"{what} mujoco.rollout alone", ours, bare, "env steps/s", ours / bare))
            rows.append(entry(f"{what} stable-baselines3 on {rival}", ours, peer, "env steps/s", ours / peer))
        path = arguments.out or HERE / "results" / "cpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        print(row)
    import jax

    print(platform.processor() or platform.machine(), jax.devices(), "jax", jax.__version__)


if __name__ == "__main__":
    main()
