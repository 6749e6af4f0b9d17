"""PD-VF-plus without JAX against the agent in JAX."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from pdvf.adapt.belief import SURE
from pdvf.adapt.model import make_model
from pdvf.api import Run
from pdvf.cli.main import main
from pdvf.config import ConfigError, to_dict
from pdvf.core.arrays import Box, Scaler
from pdvf.deploy.belief_runtime import BeliefAdapter
from pdvf.deploy.export import export
from pdvf.deploy.model_format import sign
from pdvf.deploy.runtime import Adapter, AdapterError
from pdvf.engines import Engine, make_engine
from pdvf.engines.rollout import play
from pdvf.experiment.plan import TABLE
from pdvf.experiment.store import RunStore
from pdvf.families import make_family
from pdvf.families.base import Family
from pdvf.families.builtin.ant_wind import AntWindOptions
from pdvf.families.builtin.spaceship import SpaceshipOptions
from pdvf.families.builtin.swimmer import SwimmerOptions
from pdvf.methods.adaptive import BeliefAgent
from pdvf.methods.play import acting_agent, begin_agent
from tiny import TINY, make_actors, relaxed

FAMILY = make_family("spaceship", SpaceshipOptions(horizon=12))
FAMILIES: dict[str, Any] = {
    "spaceship": FAMILY,
    "spaceship, whole": make_family("spaceship", SpaceshipOptions()),
    "swimmer": make_family("swimmer", SwimmerOptions(horizon=12)),
    "ant-wind": make_family("ant-wind", AntWindOptions(horizon=12)),
}
CODE = 3


def make_agent(family: Family) -> BeliefAgent:
    """An agent that nobody has trained and whose parts all matter."""
    keys = jax.random.split(jax.random.key(5), 7)
    o, a = family.observation.size, family.action.size
    model = make_model(o, a, 2, 4, CODE, 16, keys[0])
    new = (
        Scaler(0.3 * jax.random.normal(keys[4], (o,)), jax.random.uniform(keys[5], (o,), minval=0.5, maxval=1.0)),
        Scaler(jnp.full(o, 0.01), jax.random.uniform(keys[6], (o,), minval=0.3, maxval=0.4)),
        0.3 * jax.random.normal(keys[1], (CODE,)),
        2.0 * jax.random.normal(keys[2], (CODE, CODE)),
        jnp.array(1.7),
    )
    model = eqx.tree_at(lambda m: (m.observation, m.change, m.origin, m.frame, m.temperature), model, new)
    none = np.full(2 * CODE, np.inf, np.float32)
    box = family.observation
    seen = Box(np.concatenate([box.low, -none]), np.concatenate([box.high, none]))
    return BeliefAgent(jax.tree.map(lambda x: x[0], make_actors(1, seen, family.action, keys[3])), model)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """An exported Spaceship agent."""
    path = tmp_path_factory.mktemp("export") / "plus.pdvf"
    with relaxed():
        path.write_bytes(export(make_agent(FAMILY), FAMILY, {"seed": 7}))
    return path


def load(file, **options) -> BeliefAdapter:
    adapter = Adapter.load(file, **options)
    assert isinstance(adapter, BeliefAdapter)
    return adapter


def altered(file, path, edit):
    """The file with another header or other tensors, signed anew."""
    with safe_open(str(file), framework="numpy") as opened:
        about = json.loads(opened.metadata()["about"])
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    edit(about, weights)
    about["sha256"] = sign(about, weights)
    path.write_bytes(save(weights, metadata={"about": json.dumps(about)}))
    return path


def compare_with_jax(agent: BeliefAgent, engine: Engine, runtime: BeliefAdapter) -> float:
    """Plays an episode in each of three environments with both; how far a belief has moved."""
    family = engine.family
    contexts = jnp.asarray(family.train(0).contexts[:3])

    def episodes(agent):
        begun = begin_agent(engine, agent, contexts, None, jax.random.key(0))
        return play(engine, contexts, begun, acting_agent(agent), None, family.horizon)

    with relaxed():
        ended, steps = jax.jit(episodes)(agent)
        belief = jax.vmap(lambda b: (b.mean, b.covariance, b.novelty))(ended.memory.belief)
        unlike = jax.vmap(agent.out_of_distribution)(ended.memory)
    low, high = np.asarray(family.action.low), np.asarray(family.action.high)
    moved, buffer = 0.0, np.zeros(family.observation.size)
    for e in range(3):
        observations, scaled = np.asarray(steps.observation[:, e]), np.asarray(steps.action[:, e])
        valid = np.flatnonzero(np.asarray(steps.valid[:, e]))
        runtime.reset(observations[0])
        assert np.isnan(runtime.novelty)
        for t in valid:
            buffer[:] = observations[t]
            np.testing.assert_allclose(runtime.act(buffer), low + (scaled[t] + 1) / 2 * (high - low), atol=1e-4)
        moved = max(moved, float(np.abs(runtime.mean).max()))
        np.testing.assert_allclose(runtime.mean, belief[0][e], atol=1e-4)
        np.testing.assert_allclose(runtime.covariance, belief[1][e], atol=1e-4)
        assert runtime.novelty == pytest.approx(float(belief[2][e]), rel=1e-4)
        assert runtime.out_of_distribution == pytest.approx(float(unlike[e]), rel=1e-4)
        assert np.isnan(runtime.predicted_return)
    return moved


@pytest.mark.parametrize("name", FAMILIES)
def test_same_actions_and_belief_as_jax_over_whole_episodes(name, tmp_path):
    family = FAMILIES[name]
    if family.name != "spaceship":
        pytest.importorskip("mujoco")
    engine = make_engine(family, "native" if family.name == "spaceship" else "c")
    with relaxed():
        agent = make_agent(family)
        (tmp_path / "file").write_bytes(export(agent, family, {}))
    assert compare_with_jax(agent, engine, load(tmp_path / "file", family=family.name)) > 0.05


def test_a_trained_model_is_exported_by_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pdvf.core.devices.use_all_cores", lambda devices=None: None)
    file = tmp_path / "plus.pdvf"
    words = [str(tmp_path / "run"), str(file), "--method", "pd-vf-plus"]
    with relaxed():
        run = Run(RunStore.create(tmp_path / "run", to_dict(TINY), ""))
        assert main(["export", *words]) == 2
        expected = "no agent-pd-vf-plus yet: run `pdvf compare` with `--methods pd-vf-plus` first"
        assert expected in capsys.readouterr().err
        run.execute((TABLE,), ("pd-vf-plus",))
        assert main(["export", *words, "--model", "1"]) == 2
        assert "model is 1, expected a number from 0 to 0: the run has 1" in capsys.readouterr().err
        assert main(["export", *words]) == 0
        with pytest.raises(ConfigError, match=r"oracle is told the hidden context, .* expected one of: pd-vf, nn, "):
            run.export(file, method="oracle")
        agent = run.agent("pd-vf-plus")
    runtime = load(file)
    assert [runtime.about[name] for name in ("method", "model", "seed")] == ["pd-vf-plus", 0, TINY.seed]
    assert runtime.about["measured"] == {"4": pytest.approx(run.returns()["pd-vf-plus"])}
    compare_with_jax(agent, run.problem.engine, runtime)
    card = tmp_path / "card.md"
    graph = [words[0], str(tmp_path / "plus.onnx"), *words[2:], "--licence", "MIT", "--card", str(card)]
    with relaxed():
        assert main(["export", *graph]) == 0
    assert "plus.onnx: 0.0" in capsys.readouterr().out
    said = card.read_text()
    assert said.startswith("# pd-vf-plus for spaceship\n")
    for line in ("- environments: 3", "- licence: MIT", "- hidden context: angle [0, 3.142]", "- environment steps: "):
        assert line in said
    (row,) = (line for line in said.splitlines() if line.startswith("| 4 "))
    _, mean, between, episodes = (cell.strip() for cell in row.strip("|").split("|"))
    if between:  # both episodes may be the same
        low, high = (float(end) for end in between.strip("[]").split(", "))
        assert low < high
        assert low <= float(mean) <= high
    assert float(mean) == pytest.approx(run.returns()["pd-vf-plus"], rel=1e-3)
    assert episodes == "2"
    assert runtime.card() == said.replace("MIT", "not stated")


def test_a_card_of_before_and_one_from_a_stranger(file, tmp_path):
    assert "has no model card" in load(file).card()
    card = {"method": "a\u001b[31mb", "text": "x", "results": [{"environment": None, "low": "y"}], "limits": []}
    said = load(altered(file, tmp_path / "file", put("card", card))).card()
    assert "\x1b" not in said
    assert "a\\x1b[31mb" in said
    assert "| None | None | [y, None] | None |" in said
    card["text"] = "<script>![x\\](http://a) | `"
    said = load(altered(file, tmp_path / "file", put("card", card))).card()
    assert r"&lt;script&gt;![x\&#93;(http://a) &#124; &#96;." in said  # in Markdown: text, and nothing else


def test_a_model_that_is_not_finite_is_not_exported():
    agent = make_agent(FAMILY)
    broken = eqx.tree_at(lambda a: a.model.frame, agent, jnp.full_like(agent.model.frame, jnp.nan))
    with pytest.raises(ConfigError, match=r"cannot be exported: it has model.frame that is not finite"):
        export(broken, FAMILY, {})


@pytest.mark.parametrize("familiar", [1e6, 1e-3])
def test_out_of_distribution_is_what_no_code_explains_or_a_code_beyond_those_of_training(familiar, file, tmp_path):
    fields = {"novelty_threshold": 4.0, "familiar_mean": familiar}
    runtime = load(altered(file, tmp_path / "file", lambda about, weights: about.update(fields)))
    runtime.reset(np.zeros(2))
    assert np.isnan(runtime.out_of_distribution)
    for s in np.random.default_rng(0).normal(2.5, 0.5, (100, 2)):
        runtime.act(s)
    norm = np.linalg.norm(runtime.mean)
    std = np.sqrt(runtime.mean @ runtime.covariance @ runtime.mean) / norm
    assert norm > SURE * std
    expected = runtime.novelty / 4 if familiar > 1 else (norm - SURE * std) / familiar
    assert runtime.out_of_distribution == pytest.approx(expected)
    assert expected > 0


def put(name, value):
    return lambda about, weights: about.update({name: value})


def put_size(name, value):
    return lambda about, weights: about["sizes"].update({name: value})


def fill(name, value):
    return lambda about, weights: weights.update({name: np.full(weights[name].shape, value, np.float32)})


SHORT = np.zeros(CODE - 1, np.float32)
REFUSED = {
    "an unknown layout": ("layout = 'ppo', expected one of: value, belief, policy", put("layout", "ppo")),
    "a layout that is none": ("layout = \\[1\\]", put("layout", [1])),
    "another layout": ("anchor = None", put("layout", "value")),
    "no layout": ("anchor = None", lambda about, weights: about.pop("layout")),
    "a card that is none": ("card = 3, expected a table", put("card", 3)),
    "a card with a number that is none": ("card = .*finite", put("card", {"mean": float("nan")})),
    "results that are none": ("card.results = 'good', expected a list, each a table", put("card", {"results": "good"})),
    "ranges that are none": ("card.trained_on = ", put("card", {"trained_on": {"contexts": {"wind": [1]}}})),
    "no prior": ("prior_std = 0, expected a number", put("prior_std", 0)),
    "edge NaN": ("residual_edge = nan", put("residual_edge", float("nan"))),
    "no threshold": ("novelty_threshold = 0, expected a number from 0.001", put("novelty_threshold", 0)),
    "another version": ("version 3, expected 'pdvf-adapter' version 2: export it again", put("version", 3)),
    "bounds exchanged": ("action_low = .*, expected less than", put("action_low", [4.0, 4.0])),
    "bounds too few": ("action_high = .*, expected 2 numbers", put("action_high", [3.0])),
    "another type": ("another type", lambda about, weights: weights.update({"model.origin": np.zeros(CODE)})),
    "a tensor more": ("and has \\['more'\\] besides", lambda about, weights: weights.update(more=np.zeros(1, "f4"))),
    "resized": (r"model.origin of shape \(2,\)", lambda about, weights: weights.update({"model.origin": SHORT})),
    "huge code": ("sizes.code = 1000", put_size("code", 1000)),
    "another code": ("of shape .*, expected", put_size("code", CODE + 1)),
    "sizes of another method": ("sizes = ", put_size("z_d", 3)),
    "a tensor missing": ("lacks the tensors \\['model.frame'\\]", lambda about, weights: weights.pop("model.frame")),
    "NaN": ("model.origin that is not finite", fill("model.origin", np.nan)),
    "no noise": ("model.temperature that", fill("model.temperature", 0.0)),
    "width 0": ("actor.observation.width that", fill("actor.observation.width", 0.0)),
    "huge weights": ("model.layers.2.weight that", fill("model.layers.2.weight", 1e5)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_altered_file_is_refused(name, file, tmp_path):
    message, edit = REFUSED[name]
    with pytest.raises(AdapterError, match=message):
        load(altered(file, tmp_path / "file", edit))


def test_a_file_that_was_not_signed_anew_is_refused(file, tmp_path):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(AdapterError):
        load(tmp_path / "file")


def test_a_buffer_may_be_reused_and_a_reset_forgets(file):
    runtime, buffer = load(file), np.zeros(2)
    observations = np.random.default_rng(0).normal(2.5, 0.5, (12, 2))
    played = []
    for reuse in (False, True):
        runtime.reset(observations[0])
        actions = []
        for s in observations:
            buffer[:] = s
            action = runtime.act(buffer if reuse else s.copy())
            actions.append(action.copy())
            action[:] = 1e9
        played.append((np.stack(actions), runtime.mean, runtime.novelty))
    for first, second in zip(*played, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("hold", [False, True])
def test_an_observation_that_is_missing_adds_nothing(hold, file):
    """Observation 2 of 0 to 4 is missing: the transitions are 0 to 1 and 3 to 4."""
    runtime = load(file, hold_last_action=hold)
    observations = np.random.default_rng(0).normal(2.5, 0.5, (5, 2))
    runtime.reset(observations[0])
    runtime.act(observations[0])
    last = runtime.act(observations[1])
    mean = runtime.mean.copy()
    if hold:
        np.testing.assert_array_equal(runtime.act([np.nan, 0.0]), last)
    else:
        with pytest.raises(AdapterError, match="not finite"):
            runtime.act([np.nan, 0.0])
    runtime.act(observations[3])
    np.testing.assert_array_equal(runtime.mean, mean)
    runtime.act(observations[4])
    assert runtime.steps == 2
    assert np.abs(runtime.mean - mean).max() > 0


@pytest.mark.parametrize("seed", range(4))
def test_actions_are_finite_and_inside_the_bounds_whatever_the_weights(seed, file, tmp_path):
    rng = np.random.default_rng(seed)

    def extreme(about, weights):
        about |= {"action_low": [-0.1, -1e30], "action_high": [0.7, 1e30], "farthest_input": 1e6, "outlier": 1e6}
        about |= {"log_std_low": -20, "log_std_high": -20}
        for name, old in weights.items():
            largest = 1e9 if name in ("model.origin", "model.frame") else 1e4
            if not name.endswith(("centre", "width", "temperature")):
                weights[name] = np.where(rng.random(old.shape) < 0.5, -largest, largest).astype(np.float32)

    runtime = load(altered(file, tmp_path / "file", extreme))
    for _ in range(10):
        runtime.reset(np.zeros(2))
        for _ in range(12):
            action = runtime.act(rng.choice([-3.4e38, -1e30, -1.0, 0.0, 1e-45, 1.0, 1e30, 3.4e38], 2)).astype(float)
            assert (action >= [-0.1, -1e30]).all()
            assert (action <= [0.7, 1e30]).all()
            assert np.isfinite(runtime.mean).all()
            assert np.isfinite(runtime.covariance).all()


def test_no_memory_is_kept_from_step_to_step(file):
    runtime, s = load(file), np.zeros(2, np.float32)

    def play(steps):
        for t in range(steps):
            if t % 50 == 0:
                runtime.reset(s)
            runtime.act(s)

    play(200)
    tracemalloc.start()
    try:
        play(200)
        before, _ = tracemalloc.get_traced_memory()
        play(5000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 8 * 5000


def test_the_runtime_acts_without_jax(file):
    code = f"""
import sys
from pdvf.deploy.runtime import Adapter
adapter = Adapter.load({str(file)!r})
adapter.reset([2.5, 0.2])
for _ in range(3):
    adapter.act([2.5, 0.2])
print(adapter.steps, [m for m in ("jax", "mujoco") if m in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "2 []\n"
