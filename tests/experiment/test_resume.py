"""A run that is killed and started again gives the same bits as one that was left alone."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pdvf.config import to_dict
from pdvf.experiment.store import RunStore
from tiny import TINY, command_line

# More checkpoints than elsewhere, so that there is time to kill between the first and the last.
CONFIG = replace(TINY, ppo=replace(TINY.ppo, steps=128, checkpoints=4))
ARTEFACTS = {
    "policies",
    "upper_bound",
    "trajectories",
    "dynamics",
    "policy",
    "adapter",
    "initial_adapter",
    "evaluation",
    "adaptation-pd-vf",
    *(f"{kind}-{method}" for kind in ("agent", "returns") for method in ("pd-vf", "nn", "ppo-env")),
}

pytestmark = pytest.mark.timeout(900)


def start(folder: Path, cores: Sequence[int] = ()) -> subprocess.Popen[str]:
    """`pdvf run` with its progress to be read, on some cores or on all."""
    program = [sys.executable, "-m", "pdvf", "run", "spaceship", *command_line(CONFIG), "--out", str(folder)]
    bound = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
    return subprocess.Popen([*bound, *program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(folder: Path, cores: Sequence[int] = ()) -> list[str]:
    """Runs to the end; what it said on its way."""
    with start(folder, cores) as child:
        said, complaints = child.communicate()
    assert child.returncode == 0, complaints
    table = said.splitlines()
    assert table[0].split("  ")[0] == "method"
    assert {line.split()[0] for line in table[1:-1]} == {"pd-vf", "nn", "ppo-env", "Adapts:", "pd-vf:"}
    assert table[-1] == f"report: {folder / 'report.html'}"
    return complaints.splitlines()


def kill(folder: Path, moment: str) -> list[str]:
    """Kills the run as soon as it says that it has come to this moment; what it said until then."""
    said: list[str] = []
    with start(folder) as child:
        assert child.stderr is not None
        for line in child.stderr:
            said.append(line.strip())
            if line.startswith(moment):
                child.send_signal(signal.SIGKILL)
                break
        assert child.wait() == -signal.SIGKILL, said
    return said


def results(folder: Path) -> dict[str, object]:
    """Everything in a run that must not depend on interruptions."""
    store = RunStore.open(folder)
    assert store.config == to_dict(CONFIG)  # else the source was edited between the runs: compare nothing
    names = {path.name.split(".")[0] for path in (folder / "artefacts").iterdir()}
    found: dict[str, object] = {name: store.manifest(name)["sha256"] for name in names}
    found |= {f"history of {name}": store.info(name)["history"] for name in names}
    return found | {"returns.csv": (folder / "returns.csv").read_text()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    said = finish(folder)
    for phase in ("train", "collect", "embed", "fit", "evaluate"):
        assert f"{phase}: begins" in said
    return folder


def test_run_leaves_every_artefact_and_table(uninterrupted):
    assert {path.name for path in (uninterrupted / "artefacts").iterdir()} == {
        f"{name}.{ending}" for name in ARTEFACTS for ending in ("safetensors", "json")
    }
    with open(uninterrupted / "returns.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ["family", "split", "environment", "method", "protocol", "seed", "episode", "return"]
    assert list(rows[0]) == columns
    assert len(rows) == 3 * (2 * 4 * 2) + 1 * 4 * 2
    assert (uninterrupted / "report.html").stat().st_size > 1000


def test_killed_while_fitting_and_resumed_on_one_core(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    kill(folder, "fit: stage 1 of 4")
    store = RunStore.open(folder)
    assert store.latest_stage("fit") is not None
    assert not store.has("adapter")
    said = finish(folder, cores=[min(os.sched_getaffinity(0))])  # as many devices as before, so the same bits
    assert said[0].startswith("fit: goes on after stage")  # nothing before it was done again
    assert results(folder) == results(uninterrupted)


@pytest.mark.slow
def test_killed_in_every_phase(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    moments = {  # when it is killed, and the artefact that is not there yet
        "train: begins": "policies",
        "train: stage 1 of 4": "policies",
        "collect: begins": "trajectories",
        "embed: begins": "dynamics",
        "embed: stage 3 of 20": "policy",
        "fit: begins": "adapter",
        "fit: stage 1 of 4": "adapter",
        "fit: stage 2 of 4": "adapter",
        "evaluate: begins": "evaluation",
    }
    before: set[str] = set()
    for moment, missing in moments.items():
        said = kill(folder, moment)
        store = RunStore.open(folder)
        assert not store.has(missing), moment
        done = {name for name in ARTEFACTS if store.has(name)}
        assert before <= done
        before = done
        phase = moment.split(":")[0]
        if "stage" in moment:
            assert store.latest_stage(phase) is not None
            assert f"{phase}: begins" in said or any(line.startswith(f"{phase}: goes on after") for line in said)
    assert finish(folder)[0] == "evaluate: begins"
    assert results(folder) == results(uninterrupted)
    assert finish(folder) == []  # a finished run has nothing left to do
    assert results(folder) == results(uninterrupted)
