"""The runtime without JAX against the adapter in JAX."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from pdvf.config import ValueOptions
from pdvf.core.validation import ConfigError
from pdvf.deploy.export import export
from pdvf.deploy.model_format import sign
from pdvf.deploy.pretrained import MODELS
from pdvf.deploy.runtime import Adapter as Runtime
from pdvf.deploy.runtime import AdapterError
from pdvf.engines import make_engine
from pdvf.families import make_family
from pdvf.families.base import Family
from pdvf.families.builtin.ant_legs import AntLegsOptions
from pdvf.families.builtin.ant_wind import AntWindOptions
from pdvf.families.builtin.spaceship import SpaceshipOptions
from pdvf.families.builtin.swimmer import SwimmerOptions
from pdvf.paper.adapter import ANCHORS, Adapter, adapt_episodes
from pdvf.paper.aggregate import ReturnScale, make_members
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
    family = make_family("spaceship", OPTIONS["spaceship"])
    with relaxed():
        path.write_bytes(export(make_adapter(family, 0.5), family, {"seed": 7}))
    return path


@pytest.fixture(scope="module")
def slow_file(tmp_path_factory):
    """One that probes for three steps."""
    path = tmp_path_factory.mktemp("export") / "slow.pdvf"
    family = make_family("spaceship", SpaceshipOptions(horizon=12, probe_steps=3))
    with relaxed():
        path.write_bytes(export(make_adapter(family, 0.5), family, {}))
    return path


def altered(file, path, edit, signed=True):
    """The file with another header or other tensors, signed anew or not."""
    with safe_open(str(file), framework="numpy") as opened:
        about = json.loads(opened.metadata()["about"])
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    edit(about, weights)
    if signed:
        about["sha256"] = sign(about, weights)
    path.write_bytes(save(weights, metadata={"about": json.dumps(about)}))
    return path


def put(name, value):
    """An edit that sets a field of the header."""
    return lambda about, weights: about.update({name: value})


def put_size(name, value):
    return lambda about, weights: about["sizes"].update({name: value})


def put_tensor(name, change):
    return lambda about, weights: weights.update({name: change(weights[name])})


def filled(value):
    """The same tensor with one number in all places."""
    return lambda old: np.full(old.shape, value, np.float32)


@pytest.mark.parametrize("anchor", [0.0, 0.5])
@pytest.mark.parametrize("name", OPTIONS)
def test_same_actions_as_jax_over_whole_episodes(name, anchor, tmp_path):
    if name != "spaceship":
        pytest.importorskip("mujoco")
    family = make_family(name, OPTIONS[name])
    engine = make_engine(family, "native" if name == "spaceship" else "c")
    contexts = jnp.asarray(family.train(0).contexts[:3])
    keys = jax.random.split(jax.random.key(0))
    with relaxed():
        adapter = make_adapter(family, anchor)
        adapted = jax.jit(lambda a: adapt_episodes(engine, a, contexts, keys[0], keys[1]))(adapter)
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


def test_what_is_inferred_is_unknown_while_it_probes(file):
    runtime = Runtime.load(file)
    runtime.reset([2.5, 0.2])
    runtime.act([2.5, 0.2])
    before = runtime.inferred
    runtime.act([2.6, 0.3])
    after = runtime.inferred
    assert list(before) == list(after) == ["predicted_return", "out_of_distribution", "z_d", "z_pi"]
    for name in before:
        assert np.isnan(before[name]).all()
        assert np.isfinite(after[name]).all()
        assert np.shape(before[name]) == np.shape(after[name])
    after["z_d"][:] = 9.0  # it is the caller's
    assert np.abs(runtime.inferred["z_d"]).max() <= 1.0


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
    for odd in (None, 3, b"file", tmp_path, "x" * 5000, "\0"):
        with pytest.raises(AdapterError):
            Runtime.load(odd)  # type: ignore[arg-type]


REFUSED = {
    "not signed anew": ("checksum", None),
    "another version": ("version 1, expected 'pdvf-adapter' version 2: export it again", put("version", 1)),
    "no format": ("format None", lambda about, weights: about.clear()),
    "observation as text": ("observation = '2', expected a whole number from 1", put("observation", "2")),
    "action as a truth": ("action = True, expected a whole number", put("action", True)),
    "no probing": ("probe_steps = 0, expected a whole number from 1 to 1000", put("probe_steps", 0)),
    "gigabytes": ("sizes.value = 1000000000, expected a whole number", put_size("value", 10**9)),
    "a huge number": ("sizes.members = 1000", put_size("members", 10**400)),
    "sizes that do not fit": ("of shape .*, expected", put_size("z_d", 4)),
    "no sizes": ("sizes = None", lambda about, weights: about.pop("sizes")),
    "anchor": ("anchor = 1.5, expected a number from 0 to 1", put("anchor", 1.5)),
    "anchor NaN": ("anchor = nan", put("anchor", float("nan"))),
    "measured": ("measured = {'16': 'much'}, expected a table of returns", put("measured", {"16": "much"})),
    "an unknown list": ("'note' = \\[1\\], expected text or a finite number", put("note", [1])),
    "bounds exchanged": ("action_low = .*, expected less than", put("action_low", [4.0, 4.0])),
    "bounds infinite": ("action_high = .*, expected a list, each a number", put("action_high", [3.0, float("inf")])),
    "bounds too few": ("action_low = .*, expected 2 numbers", put("action_low", [-3.0])),
    "a tensor missing": ("lacks the tensors \\['familiar'\\]", lambda about, weights: weights.pop("familiar")),
    "a tensor more": ("and has \\['more'\\] besides", lambda about, weights: weights.update(more=np.zeros(1, "f4"))),
    "resized": (r"decoder.layers.1.bias of shape \(15,\)", put_tensor("decoder.layers.1.bias", lambda x: x[:-1])),
    "another type": ("another type", put_tensor("decoder.layers.1.bias", lambda x: x.astype(np.float64))),
    "NaN": ("decoder.layers.1.bias that is not finite", put_tensor("decoder.layers.1.bias", filled(np.nan))),
    "infinite": ("value.third.weight that is not finite", put_tensor("value.third.weight", filled(np.inf))),
    "huge weights": (
        "probe.layers.0.weight that is .* -10000 to 10000",
        put_tensor("probe.layers.0.weight", filled(1e5)),
    ),
    "width 0": ("dynamics.change.width that", put_tensor("dynamics.change.width", filled(0.0))),
    "familiar 0": ("familiar that", put_tensor("familiar", filled(0.0))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_altered_file_is_refused(name, file, tmp_path):
    message, edit = REFUSED[name]
    signed = edit is not None
    changed = altered(file, tmp_path / "file", edit or put_tensor("train_z_d", np.negative), signed)
    with pytest.raises(AdapterError, match=message):
        Runtime.load(changed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "too deeply nested"),
        ("9" * 5000, "cannot be read"),
        ('{"format": "pdvf-adapter", "version": 2, "version": 2}', "twice"),
        ('"' + "x" * 2**20 + '"', "characters, expected at most"),
        ("[]", "format None"),
    ],
)
def test_a_header_that_is_none_is_refused(text, message, tmp_path):
    (tmp_path / "file").write_bytes(save({"x": np.zeros(1)}, metadata={"about": text}))
    with pytest.raises(AdapterError, match=message):
        Runtime.load(tmp_path / "file")


def test_a_model_that_is_not_finite_is_not_exported():
    family = make_family("spaceship", OPTIONS["spaceship"])
    adapter = make_adapter(family, 0.5)
    broken = eqx.tree_at(lambda a: a.value.third.bias, adapter, jnp.full_like(adapter.value.third.bias, jnp.nan))
    with pytest.raises(ConfigError, match=r"cannot be exported: it has value.third.bias that is not finite"):
        export(broken, family, {})


@pytest.mark.parametrize("name", OPTIONS)
def test_the_models_of_the_package_load(name):
    runtime = Runtime.load(MODELS / f"{name}.pdvf", family=name)
    runtime.reset(np.zeros(runtime.observation_size))
    for _ in range(runtime.probe_steps + 1):
        runtime.act(np.zeros(runtime.observation_size))
    assert runtime.inferred


def episodes(runtime, observations, give):
    """Actions over whole episodes [n, T, o], with observations as `give` gives them."""
    actions = []
    for episode in observations:
        runtime.reset(give(episode[0]))
        actions += [runtime.act(give(s)) for s in episode]
    return np.stack(actions)


def reused(dtype):
    """One buffer for all observations."""
    buffer = np.zeros(2, dtype)

    def give(s):
        buffer[:] = s
        return buffer

    return give


@pytest.mark.parametrize(
    "give",
    [
        reused(np.float32),
        reused(np.float64),
        lambda s: np.repeat(s, 3)[::3],
        lambda s: np.asfortranarray(np.stack([s, s], axis=1))[:, 1],
        lambda s: s.astype(">f4"),
        lambda s: s.tolist(),
        lambda s: tuple(s),
    ],
    ids=["reused float32", "reused float64", "strided", "column", "big-endian", "list", "tuple"],
)
def test_it_does_not_matter_what_an_observation_is_kept_in(give, slow_file):
    runtime = Runtime.load(slow_file)
    observations = np.random.default_rng(0).normal(2.5, 1.0, (3, 12, 2)).astype(np.float32)
    np.testing.assert_array_equal(episodes(runtime, observations, give), episodes(runtime, observations, np.copy))


def test_an_action_is_the_callers(slow_file):
    runtime = Runtime.load(slow_file)
    observations = np.random.default_rng(0).normal(2.5, 1.0, (1, 12, 2)).astype(np.float32)
    expected = episodes(runtime, observations, np.copy)
    runtime.reset(observations[0, 0])
    for t, s in enumerate(observations[0]):
        action = runtime.act(s)
        np.testing.assert_array_equal(action, expected[t])
        action[:] = 1e9


def test_actions_are_inside_the_bounds_for_every_finite_observation(slow_file, tmp_path):
    """Also with the largest weights that a file may have; 0.1 and 0.7 are no float32 numbers."""

    def extreme(about, weights):
        about |= {"action_low": [-0.1, -1e30], "action_high": [0.7, 1e30]}
        for name, old in weights.items():
            if name.endswith((".weight", ".bias")) and "norms" not in name:
                weights[name] = np.where(rng.random(old.shape) < 0.5, -1e4, 1e4).astype(np.float32)

    rng = np.random.default_rng(0)
    runtime = Runtime.load(altered(slow_file, tmp_path / "file", extreme))
    low, high = np.array([-0.1, -1e30]), np.array([0.7, 1e30])
    reached = set()
    for _ in range(20):
        runtime.reset(np.zeros(2))
        for _ in range(8):
            action = runtime.act(rng.choice([-3.4e38, -1e30, -1.0, 0.0, 1e-45, 1.0, 1e30, 3.4e38], 2))
            assert np.isfinite(action).all()
            assert (action.astype(float) >= low).all()
            assert (action.astype(float) <= high).all()
            reached |= {round(float(action[0]), 3)}
        assert np.isfinite([runtime.predicted_return, runtime.out_of_distribution]).all()
    assert {-0.1, 0.7} <= reached


def test_a_matrix_without_eigenvectors_is_an_error_of_ours(file):
    runtime = Runtime.load(file)
    with pytest.raises(AdapterError, match="no eigenvectors"):
        runtime.select(np.full(2, np.nan, np.float32), np.zeros(3, np.float32))


def test_wrong_observations_are_refused(file):
    runtime = Runtime.load(file)
    with pytest.raises(AdapterError, match="before reset"):
        runtime.act(np.zeros(2))
    with pytest.raises(AdapterError, match=r"shape \(3,\), expected 2"):
        runtime.reset(np.zeros(3))
    runtime.reset(np.zeros(2))
    for odd in (np.array([0.0, np.nan]), [np.inf, 0.0], np.array([1e300, 0.0])):
        with pytest.raises(AdapterError, match="not finite, expected 2 finite numbers"):
            runtime.act(odd)


@pytest.mark.parametrize(
    "odd",
    [
        None,
        "12",
        ["1", "2"],
        [1j, 2.0],
        np.zeros(2, complex),
        {"observation": [0.0, 0.0]},
        [[0.0], [1.0, 2.0]],
        np.array([0.0, 1.0], object),
        [10**400, 0],
        np.ma.masked_array([0.0, 1.0], [True, False]),
        np.zeros((1, 2)),
        np.zeros(2, "M8[s]"),
        np.zeros(2, [("x", "f4")]),
        {0.0, 1.0},
        iter([0.0, 1.0]),
        3.0,
    ],
)
def test_what_is_no_observation_is_refused(odd, file):
    runtime = Runtime.load(file, hold_last_action=True)
    with pytest.raises(AdapterError, match="expected 2 finite numbers"):
        runtime.reset(odd)
    runtime.reset([0, 1])
    with pytest.raises(AdapterError, match="expected 2 finite numbers"):
        runtime.act(odd)


def test_a_sensor_that_drops_out_holds_the_last_action(slow_file):
    runtime = Runtime.load(slow_file, hold_last_action=True)
    runtime.reset([np.nan, 0.0])
    np.testing.assert_array_equal(runtime.act([np.nan, 0.0]), [0.0, 0.0])  # the middle between the bounds
    action = runtime.act([2.0, 0.5])
    assert np.abs(action).max() > 0
    held = runtime.act([np.inf, 0.0])
    np.testing.assert_array_equal(held, action)
    held[:] = 9.0
    np.testing.assert_array_equal(runtime.act([np.nan, np.nan]), action)
    runtime.reset([2.0, 0.5])
    np.testing.assert_array_equal(runtime.act([np.nan, 0.5]), [0.0, 0.0])
    runtime.act([2.0, 0.5])
    runtime.took([1e30, -1e30])
    np.testing.assert_array_equal(runtime.act([np.nan, 0.5]), runtime.bounds[1] * [1, -1])  # never outside of them


@pytest.mark.parametrize("hold", [False, True])
def test_nothing_is_inferred_from_two_steps_as_if_they_were_one(hold, slow_file):
    """Observation 2 of 0 to 6 is missing: the transitions are 0 to 1, 3 to 4 and 4 to 5."""
    runtime = Runtime.load(slow_file, hold_last_action=hold)
    seen = np.random.default_rng(0).normal(2.5, 0.5, (7, 2)).astype(np.float32)
    runtime.reset(seen[0])
    actions = np.zeros((7, 2), np.float32)
    for t, s in enumerate(seen):
        assert (runtime.z_d is None) == (t <= 5)
        if t != 2:
            actions[t] = runtime.act(s)
        elif hold:
            runtime.act(np.full(2, np.nan))
        else:
            with pytest.raises(AdapterError):
                runtime.act(np.full(2, np.nan))
    expected = runtime.infer(seen[[0, 3, 4]], actions[[0, 3, 4]] / 3, seen[[1, 4, 5]])
    assert runtime.z_d is not None
    np.testing.assert_allclose(runtime.z_d, expected, atol=1e-6)


def test_no_memory_is_kept_from_step_to_step(slow_file):
    runtime, s = Runtime.load(slow_file), np.zeros(2, np.float32)

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_adapting_needs_is_in_memory_once_a_file_is_loaded():
    """Version 0.1 loaded LAPACK in the first episode, 8 MB of it."""
    code = f"""
import sys
import numpy as np
from pdvf.deploy.runtime import Adapter

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

adapter, s = Adapter.load({str(MODELS / "spaceship.pdvf")!r}), np.zeros(2)
before = resident()
for t in range(500):
    if t % 50 == 0:
        adapter.reset(s)
    adapter.act(s)
print(resident() - before)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 2.0


def test_the_runtime_pulls_in_neither_jax_nor_mujoco():
    code = "import sys; import pdvf.deploy.runtime; print([m for m in ('jax', 'mujoco') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_runtime_is_short():
    import pdvf.deploy.runtime as module

    assert module.__file__ is not None
    with open(module.__file__) as lines:
        assert len(lines.readlines()) < 300


def test_without_an_anchor_the_matrix_is_that_of_w(file):
    family = make_family("spaceship", OPTIONS["spaceship"])
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
