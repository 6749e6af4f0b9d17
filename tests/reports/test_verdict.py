"""The verdict of a report, and the ways to write a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fake_run import make_run
from pdvf.reports.adaptation import Adaptation
from pdvf.reports.data import Run, read_run
from pdvf.reports.page import adapts, verdict
from pdvf.reports.statistics import Estimate, summarise
from pdvf.reports.tables import UNKNOWN, Table


def run_with(run: Run, **means: float) -> Run:
    """A run of these methods (`_` for `-`) whose test returns scatter by 0.02 around these means."""
    rng = np.random.default_rng(0)
    (like, *_) = run.select("test", "honest")
    groups = []
    for name, mean in means.items():
        returns = mean + 0.02 * rng.standard_normal(like.returns.shape)
        groups.append(like._replace(method=name.replace("_", "-"), returns=returns, summary=summarise(returns)))
    return replace(run, groups=tuple(groups))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return read_run(make_run(tmp_path_factory.mktemp("verdict") / "run"))


def test_gain(run):
    said = verdict(run_with(run, pd_vf=0.9, ppo_all=0.6, nn=0.3))
    assert "PD-VF returns 0.9" in said
    assert "% more than the best baseline that was run, PPOall: 0." in said


def test_loss(run):
    said = verdict(run_with(run, pd_vf=0.6, ppo_all=0.9))
    assert said.startswith("PPOall does better: it returns 0.")
    assert "PD-VF 0." in said


def test_no_clear_difference(run):
    said = verdict(run_with(run, pd_vf=0.6, ppo_all=0.6))
    assert "no clear difference from the best baseline that was run: PPOall returns 0." in said


def test_no_baseline(run):
    assert verdict(run_with(run, pd_vf=0.6)).endswith("; no baseline was run beside it.")


def test_privileged_methods_are_no_baselines(run):
    assert verdict(run_with(run, pd_vf=0.6, ppo_env=0.9)).endswith("; no baseline was run beside it.")


def test_whether_it_adapts_is_said_of_the_better_of_ours(run):
    def measured(method: str, low: float) -> Adaptation:
        return Adaptation(method, (1,), {}, {}, 0.5, 1.0, Estimate(0.2, low, 0.4))

    both = run_with(run, pd_vf=0.6, pd_vf_plus=0.9)
    assert adapts(both) == ""  # nobody has measured it
    assert adapts(replace(both, adaptation=(measured("pd-vf", -0.1), measured("pd-vf-plus", 0.1)))) == "Adapts: yes."
    selects = replace(both, adaptation=(measured("pd-vf", 0.1), measured("pd-vf-plus", -0.1)))
    assert adapts(selects) == "Adapts: no, selection only."


TABLE = Table(["method", "mean", "steps"], [["pd-vf", "0.9", UNKNOWN], ["nn, k", "", ""]])


def test_terminal():
    assert TABLE.terminal() == "method  mean  steps\npd-vf   0.9   –\nnn, k"


def test_markdown():
    assert TABLE.markdown() == "|method|mean|steps|\n|---|---:|---:|\n|pd-vf|0.9|–|\n|nn, k|||\n"


def test_csv():
    assert TABLE.csv() == 'method,mean,steps\npd-vf,0.9,–\n"nn, k",,\n'


def test_empty_columns():
    assert TABLE.without_empty_columns() == Table(["method", "mean"], [["pd-vf", "0.9"], ["nn, k", ""]])
