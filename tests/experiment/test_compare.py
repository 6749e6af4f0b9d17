"""The comparison: one evaluation for all, what is finished stays, what is missing is made, a method in one file."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import pdvf.core.devices
from pdvf.api import Run
from pdvf.cli.main import main
from pdvf.config import ConfigError, to_dict
from pdvf.experiment.comparison import find_methods, write_returns
from pdvf.experiment.plan import recipes_for
from pdvf.experiment.store import RunStore
from pdvf.families.builtin.spaceship import Spaceship
from pdvf.methods import METHODS
from pdvf.paper.pipeline import Problem
from tiny import TINY, command_line, random_run, relaxed

DOCS = Path(__file__).parents[2] / "docs" / "add_a_method.md"
CHEAP = ("pd-vf", "ppo-env", "nn")


@pytest.fixture(scope="module", autouse=True)
def checks() -> Iterator[None]:
    """Without those that whole programs trip over."""
    with relaxed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pdvf.core.devices, "use_all_cores", lambda devices=None: None)
        yield


def compare(folder: Path, *methods: str) -> int:
    words = ["compare", "spaceship", *command_line(TINY), "--out", str(folder), "--quiet"]
    return main([*words, "--methods", *methods])


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("compared") / "run"
    random_run(folder)
    example = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    file = folder.parent / "lookup.py"
    file.write_text(example[1], encoding="utf-8")
    assert len(example[1].splitlines()) <= 60
    assert compare(folder, *CHEAP, str(file)) == 0
    assert not RunStore.open(folder).has("evaluation")
    assert "PD-VF" in (folder / "report.html").read_text(encoding="utf-8")
    assert main(["evaluate", str(folder), "--quiet"]) == 0
    return folder


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "returns.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_method_has_a_return_for_every_environment_seed_and_episode(run):
    counts: dict[tuple[str, str], int] = {}
    for row in rows(run):
        counts[row["method"], row["protocol"]] = counts.get((row["method"], row["protocol"]), 0) + 1
    # 4 environments, 2 episodes; 2 model seeds for what is made of models, 1 policy seed for the rest.
    assert counts == {
        ("pd-vf", "honest"): 16,
        ("pd-vf", "peek"): 16,
        ("nn", "honest"): 16,
        ("ppo-env", "honest"): 8,
        ("lookup", "honest"): 8,
    }


def test_one_evaluation_agrees_with_that_of_the_pipeline(run):
    # Two programs, one truth: nothing is random in Spaceship, so episodes for figures have the same returns.
    expected = RunStore.open(run).load_arrays("evaluation")["returns"]
    found = RunStore.open(run).load_arrays("returns-pd-vf")["honest"]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.ptp(found) > 1e-3


def test_no_line_of_the_table_changes_when_a_method_joins(tmp_path, monkeypatch):
    """Phase `evaluate` and `compare` play the same episodes of the same agents, also where starts are random."""
    folder = tmp_path / "run"
    random_run(folder)
    start = Spaceship.initial_state

    def anywhere(self, key, context):
        state = start(self, key, context)
        return state._replace(position=state.position + jax.random.uniform(key, (2,)))

    monkeypatch.setattr(Spaceship, "initial_state", anywhere)
    assert main(["evaluate", str(folder), "--quiet"]) == 0
    before = (folder / "returns.csv").read_text().splitlines()
    assert len({line.split(",")[-1] for line in before if "nn,honest" in line}) > 8  # starts were random
    Run(RunStore.open(folder)).compare("nn", "pd-vf", "best-single")  # as `pdvf compare`, without a report
    after = (folder / "returns.csv").read_text().splitlines()
    assert set(before) < set(after)
    assert {line.split(",")[3] for line in set(after) - set(before)} == {"best-single"}


def test_report_has_the_added_method(run):
    assert "lookup" in (run / "report.html").read_text(encoding="utf-8")


def test_finished_methods_are_left_alone_and_missing_ones_made(run):
    store = RunStore.open(run)
    before = {name: store.manifest(name)["created"] for name in store.names("agent-")}
    bits = store.manifest("returns-nn")["sha256"]
    store.remove("agent-nn")
    store.remove("returns-nn")
    files = {path: path.stat().st_mtime_ns for path in (run / "artefacts").glob("agent-*")}
    Run(store).compare(*CHEAP)
    assert store.manifest("returns-nn")["sha256"] == bits
    assert set(before) == set(store.names("agent-"))
    assert all(path.stat().st_mtime_ns == when for path, when in files.items())


def test_bounds_alone_are_told_and_ask_for_test_environments():
    assert {name for name, method in METHODS.items() if method.privileged} == {"ppo-env", "oracle"}
    assert {name for name, method in METHODS.items() if "upper_bound" in method.needs} == {"ppo-env"}


def test_methods_that_others_need_come_first():
    made = recipes_for(find_methods(["rma", "pd-vf", "oracle"]), ())
    made_tasks = ["oracle", "rma", "returns-rma", "pd-vf", "returns-pd-vf", "adaptation-pd-vf", "returns-oracle"]
    assert list(made) == made_tasks
    assert [method.name for method in find_methods([])] == list(METHODS)


@pytest.mark.parametrize(
    ("word", "message"),
    [("ppo-al", "unknown method 'ppo-al', expected one of: pd-vf"), ("none.py", "none.py is not there")],
)
def test_methods_that_are_not_there(word, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        find_methods([word])


def test_file_without_a_method(tmp_path):
    file = tmp_path / "empty.py"
    file.write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="makes no Method of its own"):
        find_methods([str(file)])


@pytest.mark.slow
def test_every_method_trains_and_plays_on_the_smallest_run(run):
    assert compare(run) == 0
    assert {row["method"] for row in rows(run)} == {*METHODS, "lookup"}


def test_rows_of_returns_by_hand(tmp_path):
    """2 models, 3 training environments and 1 for testing, 1 episode."""
    store = RunStore.create(tmp_path / "run", to_dict(TINY), "test")
    numbers = np.arange(8, dtype=np.float32).reshape(2, 4, 1)
    store.save("returns-pd-vf", {"peek": numbers + 10, "honest": numbers})
    store.save("returns-nn", {"honest": numbers + 0.5})
    write_returns(store, Problem(TINY))
    lines = (store.folder / "returns.csv").read_text().splitlines()
    assert lines[0] == "family,split,environment,method,protocol,seed,episode,return"
    assert len(lines) == 1 + 3 * 8
    assert lines[1:5] == [
        "spaceship,train,1,nn,honest,0,0,0.5",
        "spaceship,train,2,nn,honest,0,0,1.5",
        "spaceship,train,3,nn,honest,0,0,2.5",
        "spaceship,test,4,nn,honest,0,0,3.5",
    ]
    assert "spaceship,test,4,pd-vf,honest,1,0,7" in lines
    assert "spaceship,train,2,pd-vf,peek,0,0,11" in lines
