from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "results_tables.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("results_tables", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_all_pages_are_what_the_results_say(tool, capsys):
    assert tool.main(["--check"]) == 0, capsys.readouterr().out


def test_a_number_that_was_altered_by_hand_is_found(tool, tmp_path, monkeypatch):
    page = (tool.ROOT / "README.md").read_text()
    assert "|1079 " in page
    (tmp_path / "README.md").write_text(page.replace("|1079 ", "|1097 "))
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    assert (tmp_path / "README.md").read_text() == page


def test_numbers_have_the_digits_of_their_size(tool):
    assert [tool.text(x) for x in (1203.85, -14.54, 0.9178, 0.00052, 0.0)] == [
        "1204",
        "−14.5",
        "0.918",
        "5.2e−04",
        "0.000",
    ]
    assert tool.text(-0.2943, 100) == "0"


def test_lists_in_json_are_averaged(tool):
    assert tool.leaves({"a": [1, 2], "b": {"c": 3.0}, "by environment": [9]}) == {"a": 1.5, "b: c": 3.0}
    assert tool.leaves([{"x": 1.0}, {"x": 2.0}]) == {"x": 1.5}
