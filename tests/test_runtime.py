"""The runtime without JAX against the adapter in JAX."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.adapt.adapter import ANCHORS, Adapter, ClosedForm, adapt_episodes
from pdvf.config import ValueOptions
from pdvf.engines import make_engine
from pdvf.environments import AntLegsOptions, AntWindOptions, SpaceshipOptions, SwimmerOptions
from pdvf.export import export
from pdvf.families import REGISTRY
from pdvf.families.base import Family
from pdvf.runtime import Adapter as Runtime
from pdvf.runtime import AdapterError
from pdvf.value.aggregate import ReturnScale, make_members
from tiny import make_body, relaxed, same_scale

OPTIONS = {
    "spaceship": SpaceshipOptions(horizon=12),
    "swimmer": SwimmerOptions(horizon=12),
    "ant-wind": AntWindOptions(horizon=12),
    "ant-legs": AntLegsOptions(horizon=12),
}


def make_adapter(family: Family, anchor: float) -> Adapter:
    """An adapter that nobody has trained and whose parts all matter."""
    keys = jax.random.split(jax.random.key(3), 4)
    body = make_body(family.observation, family.action, 3, keys[0])
    members = make_members(same_scale(family.observation.size), 3, 3, ValueOptions(members=3, hidden=8), keys[1])
    known = jax.random.normal(keys[2], (5, 3))
    known = known / jnp.linalg.norm(known, axis=-1, keepdims=True)
    scale = ReturnScale(jnp.array(-2.0), jnp.array(9.0), jnp.array(4.0))
    if anchor == 0.0:  # with a range of returns for each environment
        scale = ReturnScale(jnp.arange(5.0), 9.0 + jnp.arange(5.0) ** 2, jnp.array(4.0))
    return Adapter(body, members, scale, known, jnp.zeros((2, 3)), anchor, 0.4)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """An exported Spaceship adapter."""
    path = tmp_path_factory.mktemp("export") / "ship.pdvf"
    family = REGISTRY["spaceship"](OPTIONS["spaceship"])
    with relaxed():
        path.write_bytes(export(make_adapter(family, 0.5), family, {"seed": 7}))
    return path


@pytest.mark.parametrize("anchor", [0.0, 0.5])
@pytest.mark.parametrize("name", OPTIONS)
def test_same_actions_as_jax_over_whole_episodes(name, anchor, tmp_path):
    if name != "spaceship":
        pytest.importorskip("mujoco")
    family = REGISTRY[name](OPTIONS[name])
    engine = make_engine(family, "native" if name == "spaceship" else "c")
    contexts = jnp.asarray(family.train(0).contexts[:3])
    keys = jax.random.split(jax.random.key(0))
    with relaxed():
        adapter = make_adapter(family, anchor)
        adapted = jax.jit(lambda a: adapt_episodes(engine, a, contexts, ClosedForm(), keys[0], keys[1]))(adapter)
        (tmp_path / "file").write_bytes(export(adapter, family, {}))
    runtime = Runtime.load(tmp_path / "file", family=name)
    low, high = np.asarray(family.action.low), np.asarray(family.action.high)
    for e in range(3):
        observations = np.asarray(adapted.steps.observation[:, e])
        scaled = np.asarray(adapted.steps.action[:, e])
        runtime.reset(observations[0])
        for t in np.flatnonzero(np.asarray(adapted.steps.valid[:, e])):
            action = runtime.act(observations[t])
            np.testing.assert_allclose(action, low + (scaled[t] + 1) / 2 * (high - low), atol=1e-5)
            assert (runtime.z_d is None) == (t < family.probe_steps)
        np.testing.assert_allclose(runtime.z_d, adapted.z_d[e], atol=1e-5)
        assert abs(float(np.dot(runtime.z_pi, adapted.z_pi[e]))) == pytest.approx(1.0, abs=1e-5)
        assert runtime.predicted_return == pytest.approx(float(adapted.predicted[e]), rel=1e-4)


def test_it_says_how_far_the_dynamics_are_from_training(file):
    runtime = Runtime.load(file)
    assert np.isnan(runtime.out_of_distribution)
    known = runtime._weights["train_z_d"]
    runtime.z_d = known[2]
    assert runtime.out_of_distribution == pytest.approx(0.0, abs=1e-6)
    apart = np.linalg.norm(known[:, None] - known[None], axis=-1) + np.diag(np.full(5, np.inf))
    runtime.z_d = -known[2]
    expected = np.linalg.norm(known + known[2], axis=-1).min() / apart.min(axis=1).max()
    assert runtime.out_of_distribution == pytest.approx(float(expected), rel=1e-5)


def test_the_file_says_what_it_is_for(file):
    about = Runtime.load(file).about
    assert about["family"] == "spaceship"
    assert (about["observation"], about["action"], about["probe_steps"]) == (2, 2, 1)
    assert about["action_low"] == [-3.0, -3.0]
    assert about["control_step"] == 0.3
    assert about["seed"] == 7


def test_a_reset_forgets(file):
    runtime = Runtime.load(file)
    first = []
    for _ in range(2):
        runtime.reset(np.array([2.5, 0.2]))
        first.append([runtime.act(np.array([2.5, 0.2 + 0.1 * t])) for t in range(3)])
    np.testing.assert_array_equal(first[0], first[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "swimmer"}, "for family 'spaceship', expected 'swimmer'"),
        ({"observation": 8}, "for observation 2, expected 8"),
        ({"action": 3}, "for action 2, expected 3"),
    ],
)
def test_a_file_for_something_else_is_refused(file, options, message):
    with pytest.raises(AdapterError, match=message):
        Runtime.load(file, **options)


def test_files_that_are_none_are_refused(file, tmp_path):
    with pytest.raises(AdapterError, match="is not there"):
        Runtime.load(tmp_path / "none")
    (tmp_path / "broken").write_bytes(file.read_bytes()[:100])
    with pytest.raises(AdapterError, match="cannot be read"):
        Runtime.load(tmp_path / "broken")


def test_wrong_observations_are_refused(file):
    runtime = Runtime.load(file)
    with pytest.raises(AdapterError, match="before reset"):
        runtime.act(np.zeros(2))
    with pytest.raises(AdapterError, match=r"shape \(3,\), expected 2"):
        runtime.reset(np.zeros(3))
    runtime.reset(np.zeros(2))
    with pytest.raises(AdapterError, match="not finite"):
        runtime.act(np.array([0.0, np.nan]))


def test_the_runtime_pulls_in_neither_jax_nor_mujoco_nor_gymnasium():
    code = "import sys; import pdvf.runtime; print([m for m in ('jax', 'mujoco', 'gymnasium') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_runtime_is_short():
    import pdvf.runtime as module

    assert module.__file__ is not None
    with open(module.__file__) as lines:
        assert len(lines.readlines()) < 300


def test_without_an_anchor_the_matrix_is_that_of_w(file):
    family = REGISTRY["spaceship"](OPTIONS["spaceship"])
    with relaxed():
        adapter = make_adapter(family, 0.5)
        s0, z_d = jnp.array([2.5, 0.2]), adapter.train_z_d[0]
        own = replace(adapter, anchor=0.0).matrix(s0, z_d)
        near = replace(adapter, anchor=1.0, anchor_width=1e-2).matrix(s0, z_d)
        anchored = adapter.matrix(s0, z_d)
        wide = replace(adapter, anchor=1.0, anchor_width=1e3).matrix(s0, z_d)
        nearest = jnp.argsort(jnp.sum((adapter.train_z_d - z_d) ** 2, axis=-1))[:ANCHORS]
        each = [replace(adapter, anchor=0.0).matrix(s0, z) for z in adapter.train_z_d[nearest]]
    np.testing.assert_allclose(near, own, atol=1e-6)  # at a training environment its own A is all there is nearby
    np.testing.assert_allclose(wide, np.mean(each, axis=0), atol=1e-5)
    assert float(jnp.abs(anchored - own).max()) > 1e-3
