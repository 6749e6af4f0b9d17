"""A model from a file plays in the test environments of its family."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from test_belief_runtime import make_agent
from test_runtime import OPTIONS, make_adapter

from pdvf.cli.main import main
from pdvf.config import to_dict
from pdvf.deploy.export import export, make_card
from pdvf.deploy.pretrained import Played, interval, table
from pdvf.experiment.store import RunStore
from pdvf.families import make_family
from pdvf.methods import METHODS
from pdvf.paper.pipeline import Problem
from tiny import TINY, relaxed


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "ship.pdvf"
    family = make_family("spaceship", OPTIONS["spaceship"])
    with relaxed():
        path.write_bytes(export(make_adapter(family, 0.5), family, {"measured": {"16": 0.123}}))
    return path


def test_five_environments_and_what_the_run_had_measured(file, capsys):
    with relaxed():
        assert main(["play", "--table", str(file), "--episodes", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith("spaceship: one adapted episode at a time")
    assert [row.split()[0] for row in rows[2:]] == ["16", "17", "18", "19", "20", "mean"]
    assert "0.123" in rows[2].split()
    assert all(0.0 <= float(row.split()[1]) <= 1.0 for row in rows[2:])


def test_a_model_of_pd_vf_plus_plays(tmp_path, capsys):
    family = make_family("spaceship", OPTIONS["spaceship"])
    with relaxed():
        (tmp_path / "plus.pdvf").write_bytes(export(make_agent(family), family, {"measured": {"16": 0.123}}))
        assert main(["play", "--table", str(tmp_path / "plus.pdvf"), "--episodes", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[2:]] == ["16", "17", "18", "19", "20", "mean"]
    number, returned, _, its_run, unlike = rows[2].split()  # it predicts no return
    assert (number, its_run) == ("16", "0.123")
    assert 0.0 <= float(returned) <= 1.0
    assert float(unlike) > 0


@pytest.mark.parametrize("name", ["hovercraft", "nothing.pdvf"])
def test_a_model_that_is_not_there(name, capsys):
    assert main(["play", "--table", name]) == 2
    assert f"the model is '{name}', expected a file made by `pdvf export`" in capsys.readouterr().err


def test_a_file_that_is_no_model(tmp_path, capsys):
    (tmp_path / "bad.pdvf").write_bytes(b"nonsense")
    assert main(["play", "--table", str(tmp_path / "bad.pdvf")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_model_of_another_size_than_its_family(file, tmp_path, capsys):
    family = make_family("swimmer", OPTIONS["swimmer"])
    with relaxed():
        (tmp_path / "other.pdvf").write_bytes(export(make_adapter(family, 0.5), family, {"family": "spaceship"}))
    assert main(["play", "--table", str(tmp_path / "other.pdvf")]) == 2
    assert "for observation and action of sizes (8, 2), expected (2, 2)" in capsys.readouterr().err


def test_measured_returns_are_those_of_the_model(tmp_path):
    store, problem = RunStore.create(tmp_path, to_dict(TINY), ""), Problem(TINY)

    def measured(model: int) -> dict[str, float]:
        rows = make_card(store, problem, METHODS["pd-vf"], model, "")["results"]
        return {row["environment"]: row["mean"] for row in rows}

    assert measured(0) == {}
    columns = ("family", "split", "environment", "method", "protocol", "seed", "episode", "return")
    with (tmp_path / "returns.csv").open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(columns)
        for method, returns in (("pd-vf", ((0.5, 0.7), (0.1, 0.3))), ("nn", ((0.2, 0.2),))):
            for seed, values in enumerate(returns):
                for episode, value in enumerate(values):
                    writer.writerow(("spaceship", "test", 16, method, "honest", seed, episode, value))
    assert measured(0) == {16: pytest.approx(0.6), "all": pytest.approx(0.6)}
    assert measured(2) == {}


def test_the_model_that_comes_with_the_package_does_what_its_run_measured(capsys):
    assert main(["play", "--table", "spaceship", "--episodes", "1"]) == 0
    for row in capsys.readouterr().out.splitlines()[2:7]:
        _, returned, _, its_run, *_ = row.split()
        assert float(returned) == pytest.approx(float(its_run), abs=5e-3)


def test_intervals_are_of_the_mean_over_episodes():
    """Returns 1 and 3: standard error 1, one degree of freedom.

    With an environment of 5 and 7 beside it the error of the mean is 1 / sqrt(2), with two degrees of freedom.
    """
    first, second = (Played(n, np.array(returns), 2.0, 0.0, 0.0) for n, returns in ((16, [1.0, 3.0]), (17, [5.0, 7.0])))
    assert interval([first]) == f"[{2 - 12.7062:.4g}, {2 + 12.7062:.4g}]"
    assert interval([first, second]) == f"[{4 - 4.30265 * 0.5**0.5:.4g}, {4 + 4.30265 * 0.5**0.5:.4g}]"
    assert table("toy", [first, second]).splitlines()[-1].split() == ["mean", "4", "[0.9576,", "7.042]", "2"]
    assert interval([first._replace(returns=np.full(3, 0.1))]) == "-"  # it would have no width
    unknown = first._replace(measured=None, returns=np.array([1.0]))
    assert table("toy", [unknown]).splitlines()[-1].split() == ["mean", "1", "-"]
