"""The status page and the page of the whole paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_run import make_run
from pdvf.cli.main import main
from pdvf.config import from_dict, to_dict
from pdvf.config.presets import preset
from pdvf.experiment.errors import RunError
from pdvf.experiment.plan import Task, plan
from pdvf.experiment.reproduce import write_index, write_status
from pdvf.experiment.store import RunStore
from pdvf.methods import METHODS
from pdvf.paper.pipeline import Problem

CHOSEN = [METHODS["pd-vf"], METHODS["rl2"]]


def tasks_in(out: Path) -> list[Task]:
    """What is to do in two runs, one of which is there."""
    stores = [make_run(out / "spaceship"), RunStore.create(out / "swimmer", to_dict(preset("swimmer", "smoke")), "")]
    return [task for store in stores for task in plan(store, Problem(from_dict(store.config)), CHOSEN)]


def test_what_is_done_and_what_is_left(tmp_path):
    tasks = tasks_in(tmp_path)
    done = {task.title for task in tasks if task.done}
    assert done == {f"spaceship {phase}" for phase in ("train", "collect", "embed", "evaluate")}  # no initial adapter
    # 6 phases; training and episodes of pd-vf, nn, ppo-env and rl2; whether pd-vf adapts. Other files do not count.
    assert write_status(tmp_path, tasks).startswith(
        "4 of 30 tasks done, 68.2 minutes"
    )  # 3723 s + 9.3 s + 340 s + 21.4 s
    page = (tmp_path / "status.html").read_text()
    assert page.count("<td>left</td>") == 30 - 4
    assert "<td>21 s</td>" in page
    assert METHODS["rl2"].text in page


def test_one_page_for_all_families(tmp_path):
    store = make_run(tmp_path / "spaceship", ("pd-vf", "ppo-env", "nn", "rl2"))
    store.write_bytes("figures/test_returns.png", b"picture")
    store.write_text("report.html", "<p>of the family</p>")
    page = write_index(tmp_path).read_text()
    assert "Returns in the test environments" in page
    assert "Returns in the training environments" not in page  # no such figure was drawn
    assert "PD-VF minus it" in page
    assert "RL²" in page


def test_a_folder_that_names_another_family(tmp_path):
    store = make_run(tmp_path / "spaceship", family="evil.py:family")
    store.write_text("report.html", "")
    with pytest.raises(RunError, match=r"a run of the family 'evil.py:family', expected 'spaceship'"):
        write_index(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("hovercraft",), "unknown family 'hovercraft', expected some of: ant-legs, ant-wind, spaceship, swimmer"),
        (("spaceship", "--methods", "magic"), "unknown method 'magic'"),
    ],
)
def test_mistakes_end_before_anything_is_made(words, message, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["reproduce", *words, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
