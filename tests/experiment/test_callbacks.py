"""Weights & Biases, offline: what was logged stands in its file."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from pdvf.callbacks import Event, TensorBoard, WandB
from pdvf.core.validation import ConfigError
from pdvf.experiment.events import tell_all


def test_one_listener_tells_all_in_their_order(tmp_path):
    told = []
    listener = tell_all([lambda event: told.append(("a", event.task)), lambda event: told.append(("b", event.task))])
    listener(Event(0.0, "run", "train", "start"))
    assert told == [("a", "train"), ("b", "train")]
    with contextlib.closing(TensorBoard(tmp_path)) as curves:
        tell_all([curves])(Event(0.0, "run", "train", "stage", 1, 2, 1.0, {"loss": 0.5}))
    assert list(tmp_path.rglob("events.out.tfevents.*"))


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"WandB needs the package wandb: pip install 'pdvf\[wandb\]'"):
        WandB()


class Recorder:
    """In place of a run of wandb."""

    def __init__(self, settings):
        self.settings, self.logged, self.metrics, self.finished = settings, [], [], False

    def define_metric(self, name, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, row):
        self.logged.append(row)

    def finish(self):
        self.finished = True


def test_a_stage_is_a_row_and_a_task_has_its_own_steps(monkeypatch):
    made = []
    module = type(sys)("wandb")
    module.init = lambda **settings: made.append(Recorder(settings)) or made[-1]  # pyright: ignore
    monkeypatch.setitem(sys.modules, "wandb", module)
    with WandB(mode="offline") as curves:
        curves(Event(0.0, "run-a", "train", "start"))
        assert made == []
        curves(Event(0.0, "run-a", "train", "stage", 1, 2, 1.0, {"loss": 0.5, "return": None}))
        curves(Event(0.0, "run-a", "fit", "stage", 1, 3, 1.0, {"loss": float("nan")}))
        curves(Event(0.0, "run-a", "fit", "stage", 2, 3, 1.0, {"loss": 0.25}))
    (run,) = made
    assert run.settings == {"project": "pdvf", "name": "run-a", "mode": "offline"}
    assert run.metrics == [("train/*", "train/stage"), ("fit/*", "fit/stage")]
    assert run.logged == [{"train/loss": 0.5, "train/stage": 1}, {"fit/loss": 0.25, "fit/stage": 2}]
    assert run.finished


OFFLINE = """
import sys
from pdvf.callbacks import Event, WandB
with WandB(project="test", mode="offline", dir=sys.argv[1]) as curves:
    for stage in (1, 2):
        curves(Event(0.0, "run", "train", "stage", stage, 2, 1.0, {"train_return": 0.5 * stage}))
"""


@pytest.mark.slow
def test_weights_and_biases_offline(tmp_path):
    pytest.importorskip("wandb")
    subprocess.run([sys.executable, "-c", OFFLINE, tmp_path], check=True, capture_output=True)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"train/train_return" in file.read_bytes()
