"""The search by Optuna: it goes on to the same trials, and gives up what is below the median."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import pdvf.core.devices
from pdvf.cli.main import main
from pdvf.families.builtin.spaceship import Spaceship
from tiny import TINY, command_line, relaxed

pytest.importorskip("optuna")
WORDS = ("--method", "ppo-all", "--sampler", "tpe", "--range", "ppo.learning_rate", "1e-5", "1e-2")


@pytest.fixture(scope="module", autouse=True)
def checks() -> Iterator[None]:
    with relaxed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pdvf.core.devices, "use_all_cores", lambda devices=None: None)
        yield


def search(folder: Path, *words: str) -> int:
    given = [word for word in command_line(TINY) if word]
    return main(["sweep", "spaceship", *given, "--out", str(folder), "--quiet", *words])


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "sweep.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_search_goes_on_to_the_same_trials_without_a_test_environment(tmp_path, capsys, monkeypatch):
    def forbidden(self, seed):
        raise AssertionError("a test environment was asked for")

    monkeypatch.setattr(Spaceship, "test", forbidden)
    assert search(tmp_path / "s", *WORDS, "--trials", "1") == 0
    first = table(tmp_path / "s")
    notes = json.loads((tmp_path / "s/trials/001/held_out.json").read_text())
    assert list(notes["values"]) == ["1"]  # of two stages: the last is judged with the method itself
    assert not notes["given_up"]
    capsys.readouterr()
    assert search(tmp_path / "s", *WORDS, "--trials", "2") == 0
    assert "trial 2 of 2: ppo.learning_rate" in capsys.readouterr().out
    rows = table(tmp_path / "s")
    assert rows[0] == first[0] | {"best": rows[0]["best"]}
    rates = [float(row["ppo.learning_rate"]) for row in rows]
    assert rates[0] != rates[1]
    assert all(1e-5 <= rate <= 1e-2 for rate in rates)
    best = max(rows, key=lambda row: float(row["held_out_return"]))
    assert [row["best"] for row in rows] == ["yes" if row is best else "" for row in rows]
    # A trial that was given up is not run again, and counts for nothing.
    path = tmp_path / "s/trials/002/held_out.json"
    path.write_text(json.dumps({"values": {"1": -1.0}, "given_up": True}))
    assert search(tmp_path / "s", *WORDS, "--trials", "2") == 0
    assert table(tmp_path / "s")[1]["held_out_return"] == ""
    assert search(tmp_path / "s", *WORDS[:-1], "1e-1") == 2
    assert "belongs to a sweep with other options" in capsys.readouterr().err


def test_below_the_median_a_trial_is_given_up(tmp_path, monkeypatch):
    import optuna

    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda self: self.number == 0)
    assert search(tmp_path / "s", *WORDS, "--trials", "1") == 0
    assert json.loads((tmp_path / "s/trials/001/held_out.json").read_text())["given_up"]
    assert not list(tmp_path.rglob("agent-ppo-all.safetensors"))
    assert table(tmp_path / "s")[0]["held_out_return"] == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sampler", "tpe"), "nothing to search"),
        (("--sampler", "tpe", "--range", "ppo.learning_rate", "1e-2", "1e-5"), "expected two floats, low first"),
        (("--sampler", "tpe", "--range", "ppo.stepz", "1", "2"), "expected an option that is a number"),
        (("--sampler", "tpe", "--range", "ppo.hidden", "1.5", "2"), "expected two ints, low first"),
        (("--sampler", "tpe", "--range", "ppo.hidden", "-4", "2"), "hidden is -4"),
        ((*WORDS, "--workers", "2"), "one trial after the other"),
        ((*WORDS, "--trials", "0"), "--trials is 0, expected at least 1"),
        (("--range", "ppo.hidden", "8", "16"), "--range is for --sampler tpe"),
    ],
)
def test_what_cannot_be_searched_is_one_line(words, message, tmp_path, capsys):
    assert search(tmp_path / "s", *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "[]",
        '{"values": [], "given_up": false}',
        '{"values": {"1": "x"}, "given_up": false}',
        '{"values": {"x": 1.0}, "given_up": false}',
        '{"values": {}, "given_up": 1}',
    ],
)
def test_odd_notes_of_a_trial_are_one_line(text, tmp_path, capsys):
    notes = tmp_path / "s/trials/001/held_out.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pdvf.experiment.tpe.watched_scores", lambda *given: [notes.write_text(text) for _ in range(4)])
        assert search(tmp_path / "s", *WORDS, "--trials", "1") == 0
    assert search(tmp_path / "s", *WORDS, "--trials", "1") == 2
    error = capsys.readouterr().err
    assert str(notes) in error
    assert error.count("\n") == 1


def test_trials_are_not_written_through_links(tmp_path, capsys):
    (tmp_path / "outside").mkdir()
    (tmp_path / "s").mkdir()
    (tmp_path / "s/sweep.json.tmp").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pdvf.experiment.tpe.claim", lambda folder, described: None)
        (tmp_path / "s/trials").symlink_to(tmp_path / "outside")
        assert search(tmp_path / "s", *WORDS, "--trials", "1") == 2
    assert "trials is a symbolic link" in capsys.readouterr().err
    assert not any((tmp_path / "outside").iterdir())
