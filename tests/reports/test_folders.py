"""A slice of the campaign against run folders."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fake_run import make_run

TOOL = Path(__file__).parents[2] / "tools" / "campaign" / "folders.py"


def test_a_few_of_every_kind(tmp_path):
    spec = importlib.util.spec_from_file_location("folders", TOOL)
    assert spec is not None
    assert spec.loader is not None
    folders = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(folders)
    found = folders.campaign(2.0, 0, make_run(tmp_path / "base").folder)
    assert [example for counted in found.values() for example in counted["examples"]] == []
    assert min(counted["tried"] for counted in found.values()) >= 1
    for name in folders.REFUSED:
        assert found[name]["acted"] == 0
