import runpy
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from pdvf.reports.statistics import (
    difference,
    interquartile_mean,
    interval,
    probability_of_improvement,
    rank_correlation,
    resample,
    summarise,
)


def test_interquartile_mean_by_hand():
    # Of eight numbers two are cut off at each end: (3 + 4 + 5 + 6) / 4.
    assert interquartile_mean(np.array([100.0, 1, 2, 3, 4, 5, 6, -50])) == pytest.approx(3.5)
    # Of five, a quarter rounded down is one: (2 + 3 + 4) / 3.
    assert interquartile_mean(np.array([5.0, 4, 3, 2, 1])) == pytest.approx(3.0)
    assert interquartile_mean(np.array([7.0])) == pytest.approx(7.0)


def test_interval_by_hand():
    # 0, 1, ..., 100: the 2.5 % and 97.5 % quantiles are 2.5 and 97.5.
    low, high = interval(np.arange(101.0)[:, None])
    np.testing.assert_allclose([low, high], [[2.5], [97.5]])


def test_summary_by_hand():
    # Scores: environment 0 has 1 and 3, environment 1 has 5 and 11; sorted 1, 3, 5, 11.
    returns = np.array([[[0.0, 2.0], [2.0, 4.0]], [[5.0, 5.0], [10.0, 12.0]]])
    summary = summarise(returns, resamples=50)
    assert summary.mean.value == pytest.approx(5.0)
    assert summary.iqm.value == pytest.approx(4.0)
    assert [e.value for e in summary.environments] == pytest.approx([2.0, 8.0])


def test_constant_returns_have_no_width():
    summary = summarise(np.full((3, 2, 4), 0.5), resamples=20)
    for estimate in (summary.mean, summary.iqm, *summary.environments):
        assert estimate == pytest.approx((0.5, 0.5, 0.5))


def test_environments_are_strata():
    # Seeds and episodes are alike within an environment: resampling must not mix environments.
    returns = np.array([0.0, 1.0, 10.0])[:, None, None] * np.ones((1, 4, 5))
    samples = resample(returns, 30)
    assert samples.shape == (30, 3, 4)
    np.testing.assert_array_equal(samples, np.broadcast_to(np.array([0.0, 1.0, 10.0])[:, None], samples.shape))


def test_seeds_are_drawn_together_and_episodes_apart():
    # Every return is its seed's number: the same seeds must turn up in both environments.
    by_seed = np.tile(np.arange(6.0)[None, :, None], (2, 1, 3))
    samples = resample(by_seed, 40)
    np.testing.assert_array_equal(samples[:, 0], samples[:, 1])
    assert len(np.unique(samples.mean(axis=(1, 2)))) > 5
    # With one seed there is nothing to draw but episodes, and those differ between environments.
    by_episode = np.tile(np.arange(8.0)[None, None], (2, 1, 1))
    samples = resample(by_episode, 40)
    assert np.any(samples[:, 0] != samples[:, 1])
    assert samples.std() > 0


def test_interval_agrees_with_scipy_where_only_seeds_vary():
    scores = np.random.default_rng(3).normal(size=30)
    ours = summarise(scores[None, :, None], resamples=4000).mean
    theirs = scipy.stats.bootstrap(
        (scores,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(4)
    ).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.03)
    assert ours.high == pytest.approx(theirs.high, abs=0.03)


def test_same_numbers_every_time():
    returns = np.random.default_rng(0).normal(size=(3, 4, 5))
    assert summarise(returns, resamples=100) == summarise(returns, resamples=100)
    assert summarise(returns, resamples=100, seed=1) != summarise(returns, resamples=100)


def test_one_seed_has_an_interval_over_episodes():
    summary = summarise(np.array([[[1.0, 2.0]], [[3.0, 6.0]]]), resamples=500)
    assert summary.mean.value == pytest.approx(3.0)
    # The mean of two draws from 1 and 2 is 1, 1.5 or 2, each end with a quarter of the chance.
    assert summary.environments == ((1.5, 1.0, 2.0), (4.5, 3.0, 6.0))
    alone = summarise(np.array([[[1.0]], [[3.0]]]), resamples=20)
    assert alone.mean == (2.0, 2.0, 2.0)


def test_rank_correlation():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(x, x**3) == pytest.approx(1.0)
    # Ranks 2, 1, 4, 3 against 1, 2, 3, 4: 1 - 6 * 4 / (4 * 15).
    assert rank_correlation(x, np.array([5.0, 1.0, 9.0, 7.0])) == pytest.approx(0.6)
    assert rank_correlation(x, np.ones(4)) is None


def test_probability_of_improvement_by_hand():
    # Environment 0: 1 and 3 against 2 and 2: two of four pairs are won. Environment 1: 5 against 5 and 5 against 4,
    # twice each: a tie counts half, so 0.75. Mean 0.625.
    first = np.array([[[1.0], [3.0]], [[5.0], [5.0]]])
    second = np.array([[[2.0], [2.0]], [[5.0], [4.0]]])
    assert probability_of_improvement(first, second, resamples=50).value == pytest.approx(0.625)
    assert probability_of_improvement(second, first, resamples=50).value == pytest.approx(0.375)


def test_probability_of_improvement_counts_seeds_not_episodes():
    # A seed's score is the mean of its episodes: 2 against 1, although one of its episodes is lower.
    first, second = np.array([[[0.0, 4.0]]]), np.array([[[1.0, 1.0]]])
    estimate = probability_of_improvement(first, second, resamples=20)
    assert estimate.value == 1.0
    assert np.isnan([estimate.low, estimate.high]).all()


def test_probability_of_improvement_is_certain_where_methods_do_not_overlap():
    low = np.random.default_rng(0).uniform(0, 1, (3, 4, 5))
    assert probability_of_improvement(low + 2, low, resamples=100) == pytest.approx((1.0, 1.0, 1.0))
    half = probability_of_improvement(low, low, resamples=400)
    assert half.low < half.value < half.high


def test_difference_of_means_and_its_interval():
    rng = np.random.default_rng(0)
    better, worse = rng.normal(1.0, 0.1, (4, 5, 10)), rng.normal(0.2, 0.1, (4, 3, 6))
    estimate = difference(better, worse)
    assert estimate.value == pytest.approx(better.mean() - worse.mean())
    assert 0.7 < estimate.low < estimate.value < estimate.high < 0.9
    alike = difference(better, better.copy())
    assert alike.low < 0 < alike.high
    alone = difference(better[:, :1], worse[:, :1])  # one seed each: over episodes
    assert 0.6 < alone.low < alone.high < 1.0


def test_paired_difference_draws_the_same_seeds_for_both():
    rng = np.random.default_rng(1)
    models = rng.normal(0.0, 1.0, (1, 5, 1))  # what both owe to the same models
    second = models + rng.normal(0.0, 0.05, (4, 5, 10))
    first = models + 0.2 + rng.normal(0.0, 0.05, (4, 5, 10))
    apart, paired = difference(first, second), difference(first, second, paired=True)
    assert apart.value == pytest.approx(paired.value)
    assert apart.low < 0 < paired.low < 0.2 < paired.high < apart.high
    each = (first - second).mean(axis=(0, 2))  # with as many episodes as these, seeds decide
    usual = scipy.stats.bootstrap((each,), np.mean, method="percentile", n_resamples=5000, rng=0)
    assert paired.low == pytest.approx(usual.confidence_interval.low, abs=0.01)
    assert paired.high == pytest.approx(usual.confidence_interval.high, abs=0.01)
    none = difference(first - 0.2, second, paired=True)
    assert none.low < 0 < none.high


def test_methods_that_are_nearly_tied_have_their_chance_inside_its_interval():
    # The first is better by far less than what episodes differ: noise on episodes would say "about one half".
    rng = np.random.default_rng(3)
    second = np.repeat(rng.normal(size=(5, 1, 10)), 5, axis=1)
    first = second + 1e-3
    estimate = probability_of_improvement(first, second)
    assert estimate == pytest.approx((1.0, 1.0, 1.0))


def test_a_summary_in_the_results_is_what_its_returns_give():
    folder = Path(__file__).parents[2] / "results" / "examples" / "pendulum"
    tool = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "summarise_results.py"))
    assert tool["summarise"](folder) == (folder / "summary.csv").read_text(encoding="utf-8")
