"""Every method that leaves as a file acts in NumPy and in ONNX as it does in JAX, over whole episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.core.arrays import Scaler
from pdvf.core.validation import ConfigError
from pdvf.deploy.export import NUMPY, export
from pdvf.deploy.onnx_graph import export_onnx
from pdvf.deploy.runtime import Adapter
from pdvf.engines.rollout import Transitions, play
from pdvf.families.builtin.spaceship import SpaceshipOptions
from pdvf.methods import METHODS
from pdvf.methods.play import acting_agent, begin_agent
from pdvf.paper.pipeline import Problem
from tiny import TINY, random_agent, relaxed

WHOLE = replace(TINY, environment=SpaceshipOptions(environments=4, train_environments=3, probe_steps=2))
QUICK = ("pd-vf", "pd-vf-plus", "ppo-all")
EXPORTED = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name, method in METHODS.items()
    if not method.privileged
]


def episodes(problem: Problem, agent: Any) -> Transitions:
    """Whole episodes [T, n, ...] of an agent in JAX, one in each of 15 training environments."""
    engine, contexts = problem.engine, jnp.asarray(problem.contexts[:15])
    probe_steps, act = engine.family.probe_steps, acting_agent(agent)

    def whole(agent: Any) -> Transitions:
        begun = begin_agent(engine, agent, contexts, None, jax.random.key(0))
        begun, probed = play(engine, contexts, begun, act, None, probe_steps)
        transitions = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), probed)
        begun = begun._replace(memory=jax.vmap(agent.adapt)(begun.memory, transitions))
        _, rest = play(engine, contexts, begun, act, None, engine.family.horizon - probe_steps)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), probed, rest)

    return jax.tree.map(np.asarray, jax.jit(whole)(agent))


class Session:
    """An ONNX file in onnxruntime: what its user writes, in a few lines."""

    def __init__(self, data: bytes, threads: int = 0):
        runtime = pytest.importorskip("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self.inputs = {x.name: x.shape for x in self._session.get_inputs()}
        self.outputs = [x.name for x in self._session.get_outputs()]

    def reset(self) -> None:
        self._memory = {x: np.zeros(s, np.float32) for x, s in self.inputs.items() if x.startswith("memory.")}
        self.told: dict[str, np.ndarray] = {}

    def act(self, observation: np.ndarray, reward: float) -> np.ndarray:
        given = {"observation": observation.astype(np.float32), **self._memory}
        given |= {"reward": np.array(reward, np.float32)} if "reward" in self.inputs else {}
        self.told = dict(zip(self.outputs, self._session.run(None, given), strict=True))
        self._memory = {name: self.told["next" + name.removeprefix("memory")] for name in self._memory}
        return self.told["action"]


def largest_difference(steps: Transitions, box: Any, reset: Any, act: Any) -> float:
    """Largest difference of an action, as a share of half the range, from the one in JAX."""
    scaler, worst = Scaler.from_box(box), 0.0
    for e in range(steps.valid.shape[1]):
        reset(steps.observation[0, e])
        reward = 0.0
        for t in np.flatnonzero(steps.valid[:, e]):
            expected = np.asarray(scaler.unscale(steps.action[t, e]))
            apart = np.abs(act(steps.observation[t, e], reward) - expected) / np.asarray(scaler.width)
            worst, reward = max(worst, float(apart.max())), float(steps.reward[t, e])
    return worst


def acts_as_jax_does_in_numpy(agent: Any, steps: Transitions, family: Any, file: Path) -> Adapter:
    file.write_bytes(export(agent, family, {}))
    adapter = Adapter.load(file)
    assert largest_difference(steps, family.action, adapter.reset, lambda s, r: adapter.act(s)) < 1e-5
    return adapter


@pytest.mark.parametrize("name", ["ppo-dyn", "nn", "rma"])
def test_numpy_acts_as_jax_does_for_the_layouts_of_baselines(name, tmp_path):
    problem = Problem(WHOLE)
    with relaxed():
        agent = random_agent(problem, name)
        steps = episodes(problem, agent)
    acts_as_jax_does_in_numpy(agent, steps, problem.engine.family, tmp_path / "file")


def test_a_model_that_is_not_finite_is_no_graph():
    pytest.importorskip("onnx")
    broken: Any = {"weight": jnp.array([1.0, jnp.nan])}
    with pytest.raises(ConfigError, match="cannot be exported: it has numbers that are not finite"):
        export_onnx(broken, Problem(WHOLE).engine.family, {})


@pytest.mark.parametrize("name", EXPORTED)
def test_numpy_and_onnx_act_as_jax_does(name, tmp_path):
    problem = Problem(WHOLE)
    family = problem.engine.family
    with relaxed():
        agent = random_agent(problem, name)
        steps = episodes(problem, agent)
        graph = Session(export_onnx(agent, family, {"method": name}))
    assert largest_difference(steps, family.action, lambda s: graph.reset(), graph.act) < 1e-5
    assert ("reward" in graph.inputs) == (name in ("rl2", "maml"))
    if name in NUMPY:
        adapter = acts_as_jax_does_in_numpy(agent, steps, family, tmp_path / "file")
        if name == "pd-vf-plus":
            assert graph.told["out_of_distribution"] == pytest.approx(adapter.out_of_distribution, rel=1e-3)
    else:
        with pytest.raises(ConfigError, match=f"{name} has no layout for NumPy .* export it as FILE.onnx"):
            export(agent, family, {"method": name})
