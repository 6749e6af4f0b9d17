"""What a plan would cost, against schedules worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdvf.cli.main import main
from pdvf.config import to_dict
from pdvf.experiment.plan import plan
from pdvf.experiment.schedule import Job, jobs_of, longest_chain, planned_steps, schedule
from pdvf.experiment.store import RunStore
from pdvf.methods import METHODS
from pdvf.paper.pipeline import Problem
from tiny import TINY


def job(name: str, needs: tuple[str, ...], seconds: float, priority: int = 2, share: float = 1.0) -> Job:
    return Job("run", name, needs, (name,), priority, share, seconds)


JOBS = [job("train", (), 10, 0), job("collect", ("train",), 2, 1), job("a", (), 3), job("b", (), 3), job("c", (), 3)]


def test_schedules_by_hand():
    alone = schedule(JOBS, 1)
    assert alone.seconds == 21
    assert alone.busy == pytest.approx(1.0)
    assert alone.begins["run", "collect"] == 10  # phases before methods
    two = schedule(JOBS, 2)
    assert two.seconds == 16  # 10, then (2, 3) and (3, 3): methods wait for phase 1
    assert two.busy == pytest.approx(21 / 32)
    many = schedule(JOBS, 9)
    assert many.seconds == 13
    seconds, chain = longest_chain(JOBS)
    assert seconds == 13
    assert [one.name for one in chain] == ["train", "a"]
    shared = [job(str(i), (), 4, share=0.25) for i in range(8)]
    assert schedule(shared, 1).seconds == 8
    with pytest.raises(ValueError, match="c can never start"):
        schedule([job("c", ("absent",), 1)], 1)


def test_parts_take_their_part_and_a_start(tmp_path):
    config = replace(TINY, shards=2)
    tasks = plan(RunStore(tmp_path, to_dict(config)), Problem(config), [METHODS["ppo-all"]])
    found = {one.name: one for one in jobs_of(tasks, {"train": 8.0, "ppo-all": 3.0}, gpus=True, start=1.0)}
    assert [found[name].seconds for name in ("train-part-1", "train-part-2", "train", "ppo-all")] == [5, 5, 1, 3]
    assert [found[name].share for name in ("train", "collect", "ppo-all")] == [1.0, 0.5, 0.125]
    assert "report" not in found
    assert planned_steps(Problem(config), "train") == 3 * 64
    assert planned_steps(Problem(config), "bound") == 64
    assert planned_steps(Problem(config), "kmeans") == 2 * 64
    assert planned_steps(Problem(replace(config, budget="equal")), "ppo-all") == 3 * 64


def test_the_command(tmp_path, capsys):
    words = ["plan", "spaceship", "--preset", "smoke", "--shards", "2", "--out", str(tmp_path / "none")]
    assert main([*words, "--methods", "ppo-all", "--nodes", "8"]) == 0
    said = capsys.readouterr().out
    assert "train-part-2" in said
    assert "tasks on 8 nodes with 1 GPUs each; --like RUN" in said
    assert not (tmp_path / "none").exists()
    assert main([*words, "--nodes", "0"]) == 2
    assert "--nodes is 0, expected at least 1" in capsys.readouterr().err
