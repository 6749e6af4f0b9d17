"""The Python API, as the README shows it: with a name, and with a family object that is defined in this very file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pdvf
from pdvf.config import ConfigError, to_dict
from pdvf.config.presets import preset
from pdvf.core.arrays import Box
from pdvf.experiment.errors import RunError
from pdvf.families import GymFamily
from push import Push
from tiny import TINY, flat, relaxed

README = Path(__file__).parents[1] / "README.md"
SMALL = flat(to_dict(TINY))
SMOKE = flat(to_dict(preset("spaceship", "smoke")))
TINY_OPTIONS = {name: value for name, value in SMALL.items() if value != SMOKE[name]}


@pytest.fixture(autouse=True)
def checks(monkeypatch) -> Iterator[None]:
    """Without those that whole programs trip over."""
    monkeypatch.setattr("pdvf.core.devices.use_all_cores", lambda devices=None: None)
    with relaxed():
        yield


def test_the_lines_of_the_readme(tmp_path, monkeypatch):
    lines = re.search(r"```python\n(import pdvf\n.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert lines is not None
    train, seen, tasks = pdvf.train, [], set[str]()

    def train_tiny(family, preset, out):
        assert preset == "quick"
        return train(
            family,
            "smoke",
            tmp_path / out,
            options=TINY_OPTIONS,
            on_stage=[seen.append, lambda event: tasks.add(event.task)],
        )

    monkeypatch.setattr("pdvf.api.train", train_tiny)
    names = {"observation": np.array([2.5, 0.2])}
    exec(lines[1], names)
    run = names["run"]
    assert (
        {event.task for event in seen} == tasks >= {"train", "collect", "embed", "fit", "evaluate", "ppo-all", "report"}
    )
    assert set(run.returns()) >= {"pd-vf", "nn", "ppo-env", "ppo-all"}
    assert (run.folder / "report.html").is_file()
    assert names["action"].shape == (2,)
    again = pdvf.open_run(run.folder)
    assert again.returns() == run.returns()
    with pytest.raises(ConfigError, match="model is 2, expected a number from 0 to 1"):
        again.model(2)


VALUE = {"value.hidden": 8, "value.epochs": 1, "value.stages": 0, "value.decoder_rounds": 0}
"""Without aggregation, which takes long to compile."""


def test_a_family_object_from_this_file(tmp_path):
    family = GymFamily(
        name="push",
        make_env=Push,
        train_contexts=[{"force": -0.5}, {"force": 0.2}, {"force": 0.5}],
        test_contexts=[{"force": 0.3}],
        horizon=8,
        probe_steps=2,
    )
    options = {name: value for name, value in TINY_OPTIONS.items() if not name.startswith(("environment", "value."))}
    run = pdvf.train(family, "smoke", tmp_path / "run", options=options | VALUE)
    assert np.isfinite(run.evaluate()["pd-vf"])
    assert isinstance(family.observation, Box)
    adapter = run.adapter()
    adapter.reset(np.zeros(family.observation.size))
    assert adapter.act(np.zeros(family.observation.size)).shape == (family.action.size,)
    with pytest.raises(RunError, match="names the family 'object:push'"):
        pdvf.open_run(run.folder)
    assert pdvf.open_run(run.folder, family).returns() == run.returns()


def test_models_of_the_package_load_by_name():
    adapter = pdvf.load("ant-wind", hold_last_action=True)
    adapter.reset(np.zeros(27))
    assert adapter.act(np.zeros(27)).shape == (8,)


def test_what_is_not_there():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = pdvf.trian  # pyright: ignore
    with pytest.raises(ConfigError, match="unknown family 'spacehip'"):
        pdvf.train("spacehip")
