"""Means, interquartile means and their bootstrap intervals for returns [E, S, J]: environments, seeds, episodes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy.stats

RESAMPLES = 2000
LEVEL = 0.95


class Estimate(NamedTuple):
    """A number and the ends of its bootstrap interval, which are NaN where there is nothing to draw."""

    value: float
    low: float
    high: float


class Summary(NamedTuple):
    """What is said about the returns of one method in some environments."""

    mean: Estimate  # over environments, seeds and episodes
    iqm: Estimate  # over the scores of all pairs of environment and seed
    environments: tuple[Estimate, ...]  # mean of each environment


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half of the last axis; a quarter, rounded down, is cut off at each end."""
    return np.asarray(scipy.stats.trim_mean(scores, 0.25, axis=-1))


def resample(returns: np.ndarray, resamples: int = RESAMPLES, seed: int = 0, draw_episodes: bool = True) -> np.ndarray:
    """Bootstrapped scores [B, E, S], each the mean of one seed's episodes in one environment, of returns [E, S, J].

    Seeds are drawn once for all environments, since one model plays in all of them, then, if asked, episodes within
    each environment and seed. Environments are never drawn: they are the ones the question is about.
    """
    returns = returns if draw_episodes else returns.mean(axis=2, keepdims=True)
    returns = np.ascontiguousarray(returns, dtype=float)
    return _resampled(returns.tobytes(), returns.shape, resamples, seed)


@lru_cache(maxsize=128)
def _resampled(data: bytes, shape: tuple[int, int, int], resamples: int, seed: int) -> np.ndarray:
    """A method is compared with many others: its samples are drawn once."""
    returns = np.frombuffer(data).reshape(shape)
    environments, seeds, episodes = shape
    rng = np.random.default_rng(seed)
    scores = np.empty((resamples, environments, seeds))
    for b in range(resamples):
        chosen = returns[:, rng.integers(seeds, size=seeds)]
        episode = rng.integers(episodes, size=chosen.shape)
        scores[b] = np.take_along_axis(chosen, episode, axis=2).mean(axis=2)
    scores.flags.writeable = False
    return scores


def interval(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the percentile interval of samples [B, ...]."""
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def summarise(returns: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> Summary:
    """Mean, interquartile mean and mean of each environment of returns [E, S, J], with intervals.

    Where there is one seed, they say how much luck there is in the episodes, and nothing of another seed.
    """
    samples = resample(returns, resamples, seed)
    scores = returns.mean(axis=2)

    each = samples.mean(axis=2)  # [B, E]
    return Summary(
        _estimate(scores.mean(), each.mean(axis=1)),
        _estimate(interquartile_mean(scores.ravel()), interquartile_mean(samples.reshape(len(samples), -1))),
        tuple(_estimate(scores[e].mean(), each[:, e]) for e in range(len(scores))),
    )


def probability_of_improvement(
    first: np.ndarray, second: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """Chance that a seed of the first method scores above a seed of the second in the same environment.

    Returns are [E, S, J] and [E, S', J']; ties count half; environments count alike. The interval draws the seeds of
    both methods anew, each for itself. Episodes are not drawn: noise on scores that are nearly tied moves the chance
    towards one half, and the estimate out of its own interval.
    """

    def chance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = a[..., :, None], b[..., None, :]
        return np.mean((a > b) + 0.5 * (a == b), axis=(-3, -2, -1))

    value = float(chance(first.mean(axis=2), second.mean(axis=2)))
    if first.shape[1] == 1 and second.shape[1] == 1:
        return Estimate(value, np.nan, np.nan)
    scores = (resample(x, resamples, seed + i, draw_episodes=False) for i, x in enumerate((first, second)))
    return _estimate(value, chance(*scores))


def difference(first: np.ndarray, second: np.ndarray, paired: bool = False) -> Estimate:
    """Mean return of the first method less that of the second, over the same environments; [E, S, J] and [E, S', J'].

    The interval draws the seeds and episodes of both methods anew, each for itself or, if they are paired, the same
    ones for both. Where both have one seed, it says how much luck there is in the episodes, and nothing of another
    seed.
    """
    if paired:
        samples = resample(first - second).mean(axis=(1, 2))
    else:
        one, other = resample(first), resample(second, seed=1)
        samples = one.mean(axis=(1, 2)) - other.mean(axis=(1, 2))
    return _estimate(first.mean() - second.mean(), samples)


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Spearman's rank correlation; None where one of the two is constant and it has no value."""
    if first.size < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.asarray(scipy.stats.spearmanr(first, second)[0]))


def _estimate(value: float | np.ndarray, samples: np.ndarray) -> Estimate:
    low, high = interval(samples)
    return Estimate(float(value), float(low), float(high))
