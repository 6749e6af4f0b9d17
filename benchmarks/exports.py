"""Exported methods in NumPy and ONNX beside JAX: largest difference of an action, size of the file, time of a step.

python benchmarks/exports.py [--out FILE] [--families F ...] [--methods M ...] [--float64] [--random]

Writes benchmarks/results/exports.json. PD-VF and PPOall have the sizes of the preset `paper` and random weights.
PD-VF-plus is the packaged model of Ant-wind, elsewhere one that this program trains for a minute: random weights would
claim a noise that they do not have (docs/experiments/throughput.md); --random takes them all the same. Agents play
whole episodes in JAX; the runtimes are given the same observations. Differences are shares of half an action's range,
latencies medians over these steps on one core. With --float64 also the agent in JAX with twice the digits: what float32
rounds away.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from threadpoolctl import threadpool_limits

from pdvf.config import with_options
from pdvf.config.presets import preset
from pdvf.core.arrays import Scaler
from pdvf.deploy.export import NUMPY, export
from pdvf.deploy.model_format import read
from pdvf.deploy.onnx_graph import export_onnx
from pdvf.deploy.pretrained import find
from pdvf.deploy.runtime import Adapter
from pdvf.engines.rollout import Feedback
from pdvf.experiment.provenance import processor
from pdvf.methods import agent_artefact
from pdvf.methods.adaptive import PD_VF_PLUS
from pdvf.paper.pipeline import Problem

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "deploy")]
from test_exports import Session, episodes, largest_difference  # noqa: E402

from tiny import random_agent, relaxed  # noqa: E402

FAMILIES = ("spaceship", "swimmer", "ant-wind", "ant-legs")
METHODS = ("pd-vf", "pd-vf-plus", "ppo-all")


class Double:
    """An agent in JAX with float64, for the same observations."""

    def __init__(self, agent: Any, steps: Any, probe_steps: int):
        self._probed = jax.tree.map(lambda x: x[:probe_steps], steps)
        self._probe_steps, self._episode = probe_steps, -1
        with jax.enable_x64(True):
            self._agent = jax.tree.map(lambda x: jax.numpy.asarray(_double(x)), agent)
            self._act = jax.jit(lambda *given: self._agent.act(*given))
            self._adapt = jax.jit(lambda *given: self._agent.adapt(*given))

    def reset(self, observation: np.ndarray) -> None:
        self._episode, self._steps = self._episode + 1, 0
        with jax.enable_x64(True):
            self._memory = jax.tree.map(_double, self._agent.begin_episode(_double(observation), None))

    def act(self, observation: np.ndarray, reward: float) -> np.ndarray:
        """Scaled, and inside the bounds."""
        first = np.float64(self._steps == 0)
        with jax.enable_x64(True):
            if self._steps == self._probe_steps:
                probed = jax.tree.map(lambda x: _double(x[:, self._episode]), self._probed)
                self._memory = self._adapt(self._memory, probed)
            last = self._last if self._steps else np.zeros(self._probed.action.shape[-1])
            feedback = Feedback(last, np.float64(reward), first)
            action, self._memory = self._act(self._memory, _double(observation), feedback)
        self._steps, self._last = self._steps + 1, np.clip(np.asarray(action), -1.0, 1.0)
        return self._last


def _double(x: Any) -> Any:
    x = np.asarray(x)
    return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x


BRIEF = {"policy_seeds": 1, "ppo.steps": 16_384, "ppo.checkpoints": 2}
"""On top of the preset `quick`."""


def make_agent(problem: Problem, method: str, random: bool) -> tuple[Any, str]:
    """An agent, and where its weights come from."""
    family = problem.config.family
    if method != "pd-vf-plus" or random:
        return random_agent(problem, method), "random"
    if family == "ant-wind":
        return packaged(random_agent(problem, method), find(family)), "packaged"
    training = PD_VF_PLUS.train(Problem(with_options(preset(family, "quick"), BRIEF)), {}, jax.random.key(0))
    state = training.start()
    for stage in range(training.stages):
        state, _ = training.advance(state, stage)
    agents = training.finish(state)[agent_artefact(method)]
    return jax.tree.map(lambda x: x[0], agents), "a minute of training"


def packaged(agent: Any, file: Path) -> Any:
    """The agent of PD-VF-plus in JAX that a file holds, in the shape of this one."""
    weights = {name: jax.numpy.asarray(array) for name, array in read(file)[1].items()}

    def scaler(name: str) -> Scaler:
        return Scaler(weights[f"{name}.centre"], weights[f"{name}.width"])

    def layers(name: str) -> list[Any]:
        return [weights[f"{name}.{i}.{part}"] for i in range(3) for part in ("weight", "bias")]

    def places(agent: Any) -> list[Any]:
        actor, model = agent.actor, agent.model
        arrays = [x for layer in (*actor.layers, *model.prediction_net.layers) for x in (layer.weight, layer.bias)]
        return [
            actor.observation,
            model.observation,
            model.change,
            model.origin,
            model.frame,
            model.temperature,
            *arrays,
        ]

    scalers = [scaler(name) for name in ("actor.observation", "model.observation", "model.change")]
    fields = [weights[f"model.{name}"] for name in ("origin", "frame", "temperature")]
    return eqx.tree_at(places, agent, [*scalers, *fields, *layers("actor.layers"), *layers("model.layers")])


def measure(family: str, method: str, float64: bool, random: bool) -> dict[str, Any]:
    """One row of the table."""
    problem = Problem(preset(family, "paper"))
    made = problem.engine.family
    with relaxed():
        agent, weights = make_agent(problem, method, random)
        steps = episodes(problem, agent)
        graph = export_onnx(agent, made, {"method": method})
    row = {"family": family, "method": method, "weights": weights, "steps": int(steps.valid.sum())}
    if float64:
        scaler = Scaler(*(np.asarray(x, float) for x in vars(Scaler.from_box(made.action)).values()))
        double = Double(agent, steps, made.probe_steps)
        apart = largest_difference(steps, made.action, double.reset, lambda s, r: scaler.unscale(double.act(s, r)))
        row["float64: difference"] = float(f"{apart:.2g}")
    session = Session(graph, threads=1)
    row |= _runtime("ONNX", graph, steps, made.action, lambda s: session.reset(), session.act)
    if method in NUMPY:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.pdvf"
            file.write_bytes(export(agent, made, {"method": method}))
            adapter = Adapter.load(file)
            row |= _runtime("NumPy", file.read_bytes(), steps, made.action, adapter.reset, lambda s, r: adapter.act(s))
    return row


def _runtime(name: str, data: bytes, steps: Any, box: Any, reset: Any, act: Any) -> dict[str, Any]:
    seconds: list[float] = []

    def timed(observation: np.ndarray, reward: float) -> np.ndarray:
        began = time.perf_counter()
        action = act(observation, reward)
        seconds.append(time.perf_counter() - began)
        return action

    apart = largest_difference(steps, box, reset, timed)
    return {
        f"{name}: difference": float(f"{apart:.2g}"),
        f"{name}: kB": round(len(data) / 1e3),
        f"{name}: µs": round(1e6 * float(np.median(seconds)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "exports.json")
    parser.add_argument("--families", nargs="+", default=FAMILIES)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("--random", action="store_true")
    given = parser.parse_args()
    rows = []
    for family in given.families:
        for method in given.methods:
            with threadpool_limits(1):
                rows.append(measure(family, method, given.float64, given.random))
            print(rows[-1], flush=True)
            versions = {name: importlib.metadata.version(name) for name in ("jax", "numpy", "onnx", "onnxruntime")}
            about = {"command": shlex.join(["python", *sys.argv]), "versions": versions, "processor": processor()}
            found = {**about, "python": platform.python_version(), "benchmarks": rows}
            given.out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
