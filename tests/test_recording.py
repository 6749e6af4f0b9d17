"""Terminal recordings."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "record_terminal.py"
BAR = """
import sys
from pdvf.experiment.events import Event
from pdvf.experiment.progress import make_progress
shown = make_progress(False)
for kind, stage in (("start", 0), ("stage", 1), ("stage", 2), ("finish", 2)):
    shown(Event(0.0, "run", "train", kind, stage, 2, 4.0 * stage))
print("a table")
sys.exit(3)
"""


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("record_terminal", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_line_drawn_anew_is_kept_now_and_then_and_as_it_was_left(tool):
    drawn = [(t, f"\r\x1b[2K\x1b[1m{t} of 90\x1b[0m") for t in range(0, 91, 5)]
    chunks = [(0.0, "begins\r\n"), *map(tuple, drawn), (91.0, "\r"), (91.5, "\n"), (92.0, "caf\x1b"), (92.0, "[Ké")]
    assert list(tool.lines(chunks, every=30.0)) == [
        (0.0, "begins"),
        (30, "25 of 90"),
        (60, "55 of 90"),
        (90, "85 of 90"),
        (91.5, "90 of 90"),
        (92.0, "café"),
    ]


def test_a_program_draws_its_bar_and_its_exit_status_is_kept(tool, tmp_path, capfdbinary):
    assert tool.main([str(tmp_path / "file"), sys.executable, "-c", BAR]) == 1
    first, *rest = (tmp_path / "file").read_text().splitlines()
    assert first.startswith(f"$ {sys.executable}")
    recorded = [line for line in rest if re.match(r" +\d+ s  ", line)]
    assert re.search(r"s  train ━+ 2/2 done in 8.0 s", recorded[0])
    assert [line.split("s  ")[1] for line in recorded[1:]] == ["a table", "exit status 3"]
    assert b"done in" in capfdbinary.readouterr().out
