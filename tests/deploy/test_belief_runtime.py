"""PD-VF-plus without JAX against the agent in JAX."""

from __future__ import annotations

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from pdvf.adapt.model import make_model
from pdvf.core.arrays import Box, Scaler
from pdvf.deploy.belief_runtime import BeliefAdapter
from pdvf.deploy.export import export
from pdvf.deploy.model_format import sign
from pdvf.deploy.runtime import Adapter, AdapterError
from pdvf.engines import make_engine
from pdvf.engines.rollout import play
from pdvf.families import make_family
from pdvf.families.builtin.spaceship import SpaceshipOptions
from pdvf.methods.adaptive import BeliefAgent
from pdvf.methods.play import acting_agent, begin_agent
from tiny import make_actors, relaxed

FAMILY = make_family("spaceship", SpaceshipOptions(horizon=12))
CODE = 3


def make_agent() -> BeliefAgent:
    """An agent that nobody has trained and whose parts all matter."""
    keys = jax.random.split(jax.random.key(5), 5)
    o, a = FAMILY.observation.size, FAMILY.action.size
    model = make_model(o, a, 2, 4, CODE, 16, keys[0])
    new = (
        Scaler(jnp.array([2.0, 0.3]), jnp.array([0.5, 0.8])),
        Scaler(jnp.array([0.01, 0.02]), jnp.array([0.3, 0.4])),
        0.3 * jax.random.normal(keys[1], (CODE,)),
        2.0 * jax.random.normal(keys[2], (CODE, CODE)),
        jnp.array(1.7),
    )
    model = eqx.tree_at(lambda m: (m.observation, m.change, m.origin, m.frame, m.temperature), model, new)
    none = np.full(2 * CODE, np.inf, np.float32)
    box = FAMILY.observation
    seen = Box(np.concatenate([box.low, -none]), np.concatenate([box.high, none]))
    return BeliefAgent(jax.tree.map(lambda x: x[0], make_actors(1, seen, FAMILY.action, keys[3])), model)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """An exported Spaceship agent."""
    path = tmp_path_factory.mktemp("export") / "plus.pdvf"
    with relaxed():
        path.write_bytes(export(make_agent(), FAMILY, {"seed": 7}))
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


def test_same_actions_and_belief_as_jax_over_whole_episodes(file):
    engine, contexts = make_engine(FAMILY, "native"), jnp.asarray(FAMILY.train(0).contexts[:3])
    with relaxed():
        agent = make_agent()

        def episodes():
            begun = begin_agent(engine, agent, contexts, None, jax.random.key(0))
            return play(engine, contexts, begun, acting_agent(agent), None, FAMILY.horizon)

        ended, steps = jax.jit(episodes)()
        belief = jax.vmap(lambda b: (b.mean, b.covariance, b.novelty))(ended.memory.belief)
    runtime = load(file, family="spaceship")
    moved = 0.0
    for e in range(3):
        observations, scaled = np.asarray(steps.observation[:, e]), np.asarray(steps.action[:, e])
        runtime.reset(observations[0])
        assert np.isnan(runtime.novelty)
        for t in np.flatnonzero(np.asarray(steps.valid[:, e])):
            np.testing.assert_allclose(runtime.act(observations[t]), 3 * scaled[t], atol=1e-5)
        np.testing.assert_allclose(runtime.mean, belief[0][e], atol=1e-4)
        np.testing.assert_allclose(runtime.covariance, belief[1][e], atol=1e-4)
        assert runtime.novelty == pytest.approx(float(belief[2][e]), rel=1e-4)
        assert runtime.out_of_distribution == runtime.novelty
        moved = max(moved, float(np.abs(runtime.mean).max()))
    assert moved > 0.05


def put(name, value):
    return lambda about, weights: about.update({name: value})


def put_size(name, value):
    return lambda about, weights: about["sizes"].update({name: value})


def fill(name, value):
    return lambda about, weights: weights.update({name: np.full(weights[name].shape, value, np.float32)})


REFUSED = {
    "an unknown method": ("method = 'ppo', expected one of: pd-vf, pd-vf-plus", put("method", "ppo")),
    "a method that is none": ("method = \\[1\\]", put("method", [1])),
    "another method": ("anchor = None", put("method", "pd-vf")),
    "no method": ("anchor = None", lambda about, weights: about.pop("method")),
    "no prior": ("prior_std = 0, expected a number", put("prior_std", 0)),
    "edge NaN": ("residual_edge = nan", put("residual_edge", float("nan"))),
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
    assert runtime._steps == 2
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
