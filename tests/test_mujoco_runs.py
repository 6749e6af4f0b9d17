"""Each MuJoCo family through all phases at the smallest size, and its presets."""

from __future__ import annotations

import base64
import runpy
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from pdvf.config import (
    CollectOptions,
    Config,
    ConfigError,
    environment_options,
    from_dict,
    to_dict,
)
from pdvf.config.presets import PRESETS, preset
from pdvf.engines.gym_envs import MujocoEnv
from pdvf.experiment.errors import RunError
from pdvf.experiment.executors import EXECUTORS
from pdvf.experiment.plan import plan
from pdvf.experiment.progress import ignore
from pdvf.experiment.stages import _finite
from pdvf.families.registry import family_names
from pdvf.paper.pipeline import PHASES, Problem, artefact_shapes
from pdvf.reports import write_report
from tiny import TINY, random_run, relaxed

pytest.importorskip("mujoco")
MUJOCO = [name for name in family_names() if name != "spaceship"]


@pytest.mark.parametrize("family", family_names())
@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_being_written_down(family, name):
    config = preset(family, name)
    assert from_dict(to_dict(config)) == config
    assert config.ppo.normalise_observations == config.ppo.normalise_rewards == (family != "spaceship")
    assert (config.collect.steps > 0) == (family != "spaceship")


def test_swimmers_look_far_ahead():
    assert [preset("swimmer", name).ppo.discount for name in ("paper", "best", "quick")] == [0.99, 0.9999, 0.9999]
    assert preset("ant-wind", "best").ppo.discount == 0.99


def test_options_that_do_not_fit():
    swimmer = preset("swimmer", "smoke")
    native = Problem(replace(swimmer, engine="native"))
    with pytest.raises(ConfigError, match="engine is 'native', expected auto or one that simulates swimmer: c, mjx"):
        _ = native.engine
    with pytest.raises(ConfigError, match=r"collect.steps is 65, expected 0 or from .* to horizon = 32"):
        replace(swimmer, collect=CollectOptions(episodes=2, steps=65))
    with pytest.raises(ConfigError, match="environment is 'SwimmerOptions', expected AntWindOptions"):
        replace(swimmer, family="ant-wind")


def test_a_stage_that_computed_nan_is_an_error():
    _finite("train", 0, {"good": jnp.array([1.0, jnp.inf]), "whole": jnp.arange(3)})
    with pytest.raises(RunError, match=r"stage 3 of train computed NaN in actor.0, expected numbers"):
        _finite("train", 2, {"actor": [jnp.array([1.0, jnp.nan])]})


def tiny_config(family: str) -> Config:
    """Everything there is, as small as it can be; W without aggregation, which takes long to compile."""
    options = replace(environment_options(family), horizon=10) if family in MUJOCO else environment_options(family)
    if family in ("swimmer", "ant-wind"):
        options = replace(options, environments=4, train_environments=3)
    return replace(
        TINY,
        family=family,
        model_seeds=1,
        environment=options,
        ppo=replace(TINY.ppo, normalise_observations=True, normalise_rewards=True, stagger=True),
        collect=CollectOptions(episodes=2, steps=6),
        value=replace(TINY.value, stages=0),
    )


EXAMPLE = Path(__file__).parents[1] / "examples" / "half_cheetah.py"
SHORTER = """
import runpy
from dataclasses import replace

whole = runpy.run_path({path!r})["family"]
family = replace(
    whole, train_contexts=whole.train_contexts[:3], test_contexts=whole.test_contexts[:1], horizon=10
)
"""
"""The example's family with fewer and shorter environments."""


def test_the_example_steps_and_its_contexts_differ():
    family = runpy.run_path(str(EXAMPLE))["family"]
    observations = []
    for number in family.train(0).numbers[:2]:
        env = MujocoEnv(family, number)
        env.reset(seed=0)
        for _ in range(3):
            observation, reward, *_ = env.step(np.full(env.action_space.shape, 0.5, np.float32))
        assert np.isfinite([*observation, reward]).all()
        observations.append(observation)
    assert np.abs(observations[0] - observations[1]).max() > 1e-4


@pytest.mark.parametrize(
    ("family", "made_up"),
    [
        ("swimmer", ("embed",)),  # the same code for all families, and long to compile: the slow tests run it
        pytest.param("half-cheetah", (), marks=pytest.mark.slow),
        pytest.param("swimmer", (), marks=pytest.mark.slow),
        pytest.param("ant-wind", (), marks=pytest.mark.slow),
        pytest.param("ant-legs", (), marks=pytest.mark.slow),
    ],
)
def test_all_phases(family, made_up, tmp_path):
    target = family
    if family == "half-cheetah":
        (tmp_path / "cheetah.py").write_text(SHORTER.format(path=str(EXAMPLE)))
        target = f"{tmp_path / 'cheetah.py'}:family"
    config = tiny_config(target)
    problem, options = Problem(config), config.environment
    with relaxed():
        store = random_run(tmp_path / "run", config, made_up)
        EXECUTORS["serial"](plan(store, problem, phases=(*PHASES, "returns")), ignore)
        trajectories = store.load("trajectories", artefact_shapes(problem)["trajectories"])
        evaluation = store.load_arrays("evaluation")
        page = write_report(store).read_text()
    assert f"PD-VF on {family.capitalize()}" in page
    assert "paths in the test" not in page  # those are Spaceship's
    if family in MUJOCO and "cannot draw without a screen" not in page:
        numbers = problem.engine.family.test(0).numbers
        films = sorted((store.folder / "figures").glob("film-*"))
        assert [film.stem for film in films] == [f"film-{number}" for number in sorted(numbers)]
        for film in films:
            if film.suffix == ".gif":  # PyAV is not installed
                with Image.open(film) as opened:
                    assert getattr(opened, "n_frames", 1) > 1
            assert base64.b64encode(film.read_bytes()).decode() in page
        assert (store.folder / "figures" / "strips.png").is_file()
    environments = len(problem.everywhere)
    assert trajectories.observation.shape[3] == 6
    assert trajectories.valid[:, :, :, : options.probe_steps].all() or family != "swimmer"
    assert evaluation["returns"].shape == (1, environments, 2)
    for value in evaluation.values():
        assert np.isfinite(np.asarray(value)).all()
