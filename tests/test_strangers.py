"""Folders that a stranger made: no command runs code that the user did not name."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from pdvf.cli.main import main
from pdvf.config import to_dict
from pdvf.experiment.store import RunStore
from tiny import TINY, relaxed

EVIL = "import pathlib\npathlib.Path(__file__).with_name('MARKER').write_text('it ran')\nfamily = None\n"
COMMANDS = (
    *(["train"], ["collect"], ["embed"], ["fit"], ["evaluate"], ["report"], ["diagnose"]),
    *(["export", "model.pdvf"], ["report", "--family", "spaceship"]),
)
FAMILY_FIRST = (
    *(["run", "spaceship", "--out"], ["compare", "spaceship", "--out"], ["init", "spaceship", "--out"]),
    *(["check-engine", "swimmer", "--run"], ["plan", "spaceship", "--like"]),
)


@pytest.fixture(params=["evil.py:family", "evil_package.module:family"])
def hostile(tmp_path, monkeypatch, request) -> Path:
    """A run folder whose configuration names code in the working folder, which leaves a marker when it is imported."""
    for name in ("evil.py", "evil_package/__init__.py", "evil_package/module.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    RunStore.create("run", to_dict(TINY) | {"family": request.param}, "pdvf")
    return tmp_path


def ran(folder: Path) -> bool:
    return next(folder.rglob("MARKER"), None) is not None


@pytest.mark.parametrize(
    "words",
    [
        *([first, "run", *rest] for first, *rest in COMMANDS),
        *([*words, "run"] for words in FAMILY_FIRST),
        ["sweep", "spaceship", "--config", "run/config.json"],
    ],
    ids=lambda words: " ".join(words),
)
def test_nothing_of_it_is_run(hostile, words, capsys):
    before = sorted(hostile.rglob("*"))
    assert main(words) == 2
    said, error = capsys.readouterr()
    assert said == ""
    assert error.startswith("pdvf: run")
    assert error.count("\n") == 1
    assert "family" in error
    assert not ran(hostile)
    assert sorted(hostile.rglob("*")) == before


def test_list_looks_at_no_folder(hostile, capsys):
    assert main(["list"]) == 0
    assert not ran(hostile)


def test_whoever_names_it_runs_it(hostile, capsys):
    family = json.loads((hostile / "run" / "config.json").read_text())["family"]
    assert main(["report", "run", "--family", family]) == 2
    assert "expected an object that is a family" in capsys.readouterr().err  # it was looked at
    assert ran(hostile)


def test_a_run_of_ones_own_family(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pushed.py").write_text(
        textwrap.dedent("""
        from test_own_family import make
        family = make()
        """)
    )
    with relaxed():
        assert main(["init", "pushed.py:family", "--preset", "smoke", "--out", "run"]) == 0
        assert "pdvf train run --family pushed.py:family" in capsys.readouterr().out
        assert main(["fit", "run"]) == 2
        assert "--family" in capsys.readouterr().err
        assert main(["fit", "run", "--family", "pushed.py:family"]) == 2
        assert "has no artefact 'policies', which `pdvf fit` needs" in capsys.readouterr().err
        words = ["--config", "run/config.json", "--option", "ppo.learning_rate", "1e-4", "--dry-run"]
        assert main(["sweep", "pushed.py:family", *words]) == 0
        assert "1 trials of pd-vf" in capsys.readouterr().out


def test_a_command_that_is_refused_leaves_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pushed.py").write_text("from test_own_family import make\nfamily = make()\n")
    with relaxed():
        assert main(["run", "pushed.py:family", "--engine", "c", "--out", "run"]) == 2
    assert "engine is 'c', expected auto or one that simulates push" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
