"""The status page and the page of the whole paper."""

from __future__ import annotations

import pytest

from fake_run import make_run
from pdvf.cli.main import main
from pdvf.experiment.errors import RunError
from pdvf.experiment.reproduce import parts, write_index, write_status
from pdvf.methods import METHODS
from pdvf.paper.pipeline import PHASES

FAMILIES = ("spaceship", "swimmer")
CHOSEN = [METHODS["pd-vf"], METHODS["rl2"]]


def test_nothing_is_done_at_first(tmp_path):
    found = parts(tmp_path, FAMILIES, CHOSEN)
    assert len(found) == len(FAMILIES) * (len(PHASES) + len(CHOSEN))
    assert not any(part.done for part in found)
    assert [part.name for part in found][:7] == [*PHASES, "pd-vf", "rl2"]


def test_what_is_done_and_what_is_left(tmp_path):
    make_run(tmp_path / "spaceship")
    done = {(part.family, part.name) for part in parts(tmp_path, FAMILIES, CHOSEN) if part.done}
    assert ("spaceship", "evaluate") in done
    assert not any(family == "swimmer" for family, _ in done)
    assert not any(name == "rl2" for _, name in done)
    line = write_status(tmp_path, FAMILIES, CHOSEN)
    assert line.startswith(f"{len(done)} of 14 parts done")
    page = (tmp_path / "status.html").read_text()
    assert page.count("<small>left</small>") == 14 - len(done)
    assert "21 s" in page  # the phase evaluate of the made-up run


def test_one_page_for_all_families(tmp_path):
    store = make_run(tmp_path / "spaceship", ("pd-vf", "ppo-env", "nn", "rl2"))
    store.write_bytes("figures/test_baselines.png", b"picture")
    store.write_text("report.html", "<p>of the family</p>")
    page = write_index(tmp_path).read_text()
    assert "Figure 4: baselines" in page
    assert "Figure 5" not in page  # no such figure was drawn
    assert "PD-VF minus it" in page
    assert "RL²" in page


def test_a_folder_that_names_another_family(tmp_path):
    store = make_run(tmp_path / "spaceship", family="evil.py:family")
    store.write_text("report.html", "")
    for read in (write_index, lambda out: parts(out, FAMILIES, CHOSEN)):
        with pytest.raises(RunError, match=r"a run of the family 'evil.py:family', expected 'spaceship'"):
            read(tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"stretches": 3}', '{"stretches": [3]}', '{"stretches": [{"seconds": "1"}]}'])
def test_odd_stretches(tmp_path, text):
    (tmp_path / "stretches.json").write_text(text)
    with pytest.raises(RunError, match=r"stretches\.json.*delete it; only the times"):
        write_status(tmp_path, FAMILIES, CHOSEN)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("hovercraft",), "unknown family 'hovercraft', expected some of: spaceship, swimmer, ant-wind, ant-legs"),
        (("spaceship", "--methods", "magic"), "unknown method 'magic'"),
    ],
)
def test_mistakes_end_before_anything_is_made(words, message, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["reproduce", *words, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
