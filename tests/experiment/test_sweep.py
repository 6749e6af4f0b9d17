"""The search over options: budget, sharing of phases, resuming, and that no test environment is ever asked for."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pdvf.core.devices
from pdvf.cli.main import main
from pdvf.config import ConfigError
from pdvf.config.presets import preset
from pdvf.experiment.errors import RunError
from pdvf.experiment.files import to_json
from pdvf.experiment.progress import ignore
from pdvf.experiment.sweep import APPENDIX_C, HeldOut, claim, make_sweep, with_options
from pdvf.families.builtin.spaceship import Spaceship
from tiny import TINY, command_line, relaxed

SMALL = make_sweep(TINY, {"ppo.learning_rate": ["1e-4"]}, "pd-vf", [2])


@pytest.fixture(scope="module", autouse=True)
def checks() -> Iterator[None]:
    with relaxed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pdvf.core.devices, "use_all_cores", lambda devices=None: None)
        yield


def sweep(folder: Path, *words: str) -> int:
    return main(["sweep", "spaceship", *command_line(TINY), "--out", str(folder), "--quiet", *words])


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "sweep.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def trials(folder: Path) -> list[Path]:
    return sorted((folder / "trials").iterdir())


def test_search_of_a_baseline(tmp_path, capsys, monkeypatch):
    def forbidden(self, seed):
        raise AssertionError("a test environment was asked for")

    words = ("--method", "ppo-all", "--option", "ppo.steps", "64", "96")
    monkeypatch.setattr(Spaceship, "test", forbidden)
    assert sweep(tmp_path / "s", *words) == 0
    said = capsys.readouterr().out
    # One seed, 64 and 96 steps; of training environments 1 to 3 the middle one judges.
    assert said.startswith("budget: 2 trials of ppo-all; 160 environment steps")
    assert "held-out training environments 2" in said
    rows = table(tmp_path / "s")
    assert [row["ppo.steps"] for row in rows] == ["64", "96"]
    assert sum(row["best"] == "yes" for row in rows) == 1
    best = max(rows, key=lambda row: float(row["held_out_return"]))
    assert best["best"] == "yes"
    # The same command again makes nothing anew; other options in the same folder are refused.
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "s" / "trials").rglob("*.safetensors")}
    assert len(files) == 4
    assert sweep(tmp_path / "s", *words) == 0
    assert all(path.stat().st_mtime_ns == when for path, when in files.items())
    assert table(tmp_path / "s") == rows
    capsys.readouterr()
    # A trial has fewer training environments than its configuration says, so no other command may go on with it.
    assert main(["report", str(tmp_path / "s" / "trials" / "001")]) == 2
    assert f"001 is a trial of the sweep {tmp_path / 's'}, which holds" in capsys.readouterr().err
    assert sweep(tmp_path / "s", *words[:-1]) == 2
    assert "belongs to a sweep with other options" in capsys.readouterr().err


def test_search_of_a_method_that_needs_another(tmp_path, capsys):
    """RMA asks for the agents of Oracle."""
    words = ("--method", "rma", "--option", "baselines.estimation_updates", "1", "2")
    assert sweep(tmp_path / "s", *words, "--dry-run") == 0
    # One seed and two trials: 64 steps of Oracle, and as many of RMA.
    assert "2 trials of rma; 256 environment steps" in capsys.readouterr().out
    assert sweep(tmp_path / "s", *words) == 0
    for trial in trials(tmp_path / "s"):
        assert sorted(path.stem for path in trial.glob("artefacts/agent-*.json")) == ["agent-oracle", "agent-rma"]
    assert not list(tmp_path.rglob("returns-oracle.*"))  # nobody asked
    assert len(table(tmp_path / "s")) == 2


@pytest.mark.slow
def test_search_of_the_method_shares_phases(tmp_path, capsys):
    assert sweep(tmp_path / "s", "--option", "value.learning_rate", "1e-3", "5e-3") == 0
    assert "train 1 times; collect 1 times; embed 1 times; fit 2 times" in capsys.readouterr().out
    first, second = (tmp_path / "s" / "trials" / name / "artefacts" for name in ("001", "002"))
    for name, same in (("policies", True), ("dynamics", True), ("adapter", False)):
        files = [folder / f"{name}.safetensors" for folder in (first, second)]
        assert (files[0].read_bytes() == files[1].read_bytes()) == same


def test_dry_run_only_counts(tmp_path, capsys):
    assert sweep(tmp_path / "s", "--option", "ppo.learning_rate", "--option", "value.batch", "--dry-run") == 0
    said = capsys.readouterr().out
    # 4 x 3 combinations; PPO differs in 4 of them; 2 environments, 1 seed, 64 steps each time.
    assert "12 trials of pd-vf; train 4 times; collect 4 times; embed 4 times; fit 12 times; 512 environment" in said
    assert not (tmp_path / "s").exists()


def test_number_of_synthesised_environments_can_be_searched_for():
    options = {"complete": ["0", "2"], "value.learning_rate": ["1e-3", "5e-3"]}
    sweep = make_sweep(TINY, options, "pd-vf", [2])
    for task in ("complete", "train"):  # other environments, other policies
        assert [makers[task] for makers in sweep.makers] == [0, 0, 2, 2]
    # 64 steps each: policies in 2 environments, the model that synthesises, policies in 2 + 2 environments.
    assert "train 2 times" in sweep.budget()
    assert f"{64 * (2 + 1 + 4)} environment steps" in sweep.budget()


def test_held_out_environments_are_in_nothing_that_learns():
    problem = HeldOut(preset("spaceship", "quick"), held_out=(7, 8, 9))
    assert problem.contexts.shape == (12, 1)
    assert problem.everywhere.shape == (12, 1)
    angles = np.array([6, 7, 8]) * np.pi / 10
    np.testing.assert_allclose(problem.judged[12:, 0], angles, rtol=1e-6)
    assert not np.isclose(problem.contexts, angles).any()


def test_grids_of_the_appendix_are_options():
    base = preset("spaceship", "paper")
    for name, values in APPENDIX_C.items():
        for value in values:
            with_options(base, {name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"ppo.lr": ["1"]}}, "unknown option 'ppo.lr'"),
        ({"options": {"ppo": ["1"]}}, "unknown option 'ppo'"),
        ({"options": {"ppo.steps": ["many"]}}, "ppo.steps is 'many', expected a whole number"),
        ({"options": {"ppo.steps": []}}, "option ppo.steps has no values"),
        ({}, "nothing to search"),
        ({"options": {"seed": ["1"]}, "method": "ppo-env"}, "method 'ppo-env' cannot be searched for"),
        ({"options": {"seed": ["1"]}, "held_out": [16]}, "held-out environments 16, expected some but not all"),
    ],
)
def test_what_cannot_be_searched(arguments, message):
    given = {"options": {}, "method": "pd-vf", "held_out": []} | arguments
    with pytest.raises(ConfigError) as error:
        make_sweep(preset("spaceship", "quick"), **given)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda out: out.write_text("a file"), "is a file, expected a folder"),
        (lambda out: (out.mkdir(), (out / "sweep.json").write_text("{" * 2000)), r"sweep\.json is not JSON"),
        (lambda out: (out.mkdir(), (out / "sweep.json").write_text('{"a": NaN}')), r"sweep\.json holds the number nan"),
        (lambda out: (out.mkdir(), (out / "holiday.jpg").write_text("")), "is not the folder of a sweep"),
    ],
)
def test_a_folder_that_is_not_its_own(tmp_path, make, message):
    make(tmp_path / "out")
    with pytest.raises(RunError, match=message):
        SMALL.run(tmp_path / "out", "pdvf sweep", print, ignore, lambda *given: None)


def test_trials_are_not_written_through_links(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.json").write_bytes(to_json(SMALL.description()))
    for place in ("trials", "trials/001"):
        path = tmp_path / "out" / place
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(tmp_path / "outside")
        with pytest.raises(RunError, match=f"{place} is a symbolic link"):
            SMALL.run(tmp_path / "out", "pdvf sweep", print, ignore, lambda *given: None)
        path.unlink()
    assert not any((tmp_path / "outside").iterdir())


def test_a_sweep_that_was_killed_while_it_wrote_its_first_file(tmp_path):
    (tmp_path / "sweep.json.tmp").write_text("{")
    claim(tmp_path, {"method": "pd-vf"})
    assert (tmp_path / "sweep.json").is_file()
    assert not (tmp_path / "sweep.json.tmp").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is not the folder of a sweep"):
        claim(tmp_path / "other", {"method": "pd-vf"})


def test_phases_are_shared_where_nothing_that_decides_them_differs():
    for option, train, fit in (
        ("engine", [0, 1], [0, 1]),
        ("value.epochs", [0, 0], [0, 1]),
        ("budget", [0, 0], [0, 0]),
    ):
        values = {"engine": ["auto", "native"], "value.epochs": ["1", "2"], "budget": ["paper", "equal"]}[option]
        makers = make_sweep(TINY, {option: values}, "pd-vf", [2]).makers
        assert [made["train"] for made in makers] == train
        assert [made["fit"] for made in makers] == fit
