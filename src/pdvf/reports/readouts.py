"""How much of the context a code holds: two ways to read contexts off codes, scored in environments left out.

*Linear*: contexts are a ridge regression on codes. *Bayes*: codes are Gaussian processes of the context, and Bayes'
rule turns them around; so a code may hang on a context in any smooth way, as on a payload's moment and mass, and a
number that hardly shows, as the place of a light payload, does no harm to the others. For each hidden number that one
counts which is better in training environments left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pdvf.methods.oracle import context_features

PENALTY = 1e-3
"""Of the ridge regression, for each row."""
CANDIDATES = 4096
"""Contexts that are compared with a code."""
STRETCH = 0.5
"""By this share of the range of training, candidates lie outside of it on either side. Angles go all around."""
CURVATURES = (0.0, 0.1, 0.3, 1.0)
GAINS = np.geomspace(1e-2, 1e3, 11)
"""Shapes and sizes of Gaussian processes, from which the marginal likelihood takes its choice."""
RESOLUTION = 1e-2
"""Share of the spread of codes below which differences are noise."""

Readout = Callable[[Sequence[str], np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""From names, contexts [E, c] and their codes [E, J, d]: the features [n, f] of contexts with codes [n, d]."""
Scores = dict[str, float]
"""R^2 by the name of a hidden number."""


def linear(
    names: Sequence[str], contexts: np.ndarray, codes: np.ndarray, asked: np.ndarray, penalty: float = PENALTY
) -> np.ndarray:
    """By ridge regression."""
    x = codes.reshape(-1, codes.shape[-1])
    y = np.repeat(_features(names, contexts), codes.shape[1], axis=0)
    fitted = make_pipeline(StandardScaler(), Ridge(alpha=penalty * len(x))).fit(x, y)
    return np.asarray(fitted.predict(asked)).reshape(len(asked), -1)


def bayes(names: Sequence[str], contexts: np.ndarray, codes: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The posterior mean, where every candidate is as likely before its code is known.

    Codes are turned and scaled so that within an environment each of their numbers has independent noise of variance 1.
    Then each is a Gaussian process of the context.
    """
    environments, episodes, size = codes.shape
    candidates = _features(names, _candidates(names, contexts))
    known = _features(names, contexts)
    width = known.std(axis=0)
    scaled, others = ((x - known.mean(axis=0)) / np.where(width > 1e-9, width, 1.0) for x in (known, candidates))

    centre, mean = codes.mean(axis=(0, 1)), codes.mean(axis=1)
    within = (codes - mean[:, None]).reshape(-1, size)
    least = RESOLUTION**2 * ((mean - centre) ** 2).mean(axis=0).max() + 1e-18
    noise = within.T @ within / max(environments * (episodes - 1), 1) + least * np.eye(size)
    whiten = np.linalg.inv(np.linalg.cholesky(noise)).T
    turn = whiten @ np.linalg.svd((mean - centre) @ whiten, full_matrices=False)[2].T

    kernels = [(_kernel(scaled, scaled, c), _kernel(others, scaled, c)) for c in CURVATURES]
    spectra = [np.linalg.eigh(kernel) for kernel, _ in kernels]
    prior = [(1 + others**2 + c * others**4).prod(axis=-1) for c in CURVATURES]
    log_likelihood = np.zeros((len(asked), len(candidates)))
    for seen, own in zip(((mean - centre) @ turn).T, ((asked - centre) @ turn).T, strict=True):
        best = (-np.inf, 0, 0.0)
        for i, (values, vectors) in enumerate(spectra):
            for gain in GAINS * seen.var():
                variance = gain * np.maximum(values, 0.0) + 1 / episodes
                evidence = -0.5 * np.sum((vectors.T @ seen) ** 2 / variance + np.log(variance))
                best = max(best, (evidence, i, gain))
        _, i, gain = best
        inverse = np.linalg.inv(gain * kernels[i][0] + np.eye(environments) / episodes)
        across = gain * kernels[i][1]
        variance = 1 + np.maximum(gain * prior[i] - np.sum(across @ inverse * across, axis=1), 0.0)
        log_likelihood -= 0.5 * ((own[:, None] - across @ (inverse @ seen)) ** 2 / variance + np.log(variance))
    weight = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    return weight @ candidates / weight.sum(axis=1, keepdims=True)


READOUTS: tuple[Readout, ...] = (linear, bayes)


def left_out_r2(
    names: Sequence[str], contexts: np.ndarray, codes: np.ndarray, readouts: Sequence[Readout] = READOUTS
) -> Scores:
    """R^2 of the contexts [E, c] in environments that a readout of codes [E, J, d] has not seen, by name.

    Angles are read off as cosine and sine, and scored together. Numbers that do not vary have no score.
    """
    return identified(names, contexts, codes, len(contexts), readouts)[0]


def unseen_r2(names: Sequence[str], contexts: np.ndarray, codes: np.ndarray, train: int) -> Scores:
    """The same of readouts that are fitted, and chosen, in the first `train` environments and scored in the others."""
    return identified(names, contexts, codes, train)[1]


def identified(
    names: Sequence[str], contexts: np.ndarray, codes: np.ndarray, train: int, readouts: Sequence[Readout] = READOUTS
) -> tuple[Scores, Scores]:
    """`left_out_r2` of the first `train` environments, and `unseen_r2`."""
    codes = codes.astype(np.float64)
    here, there = contexts[:train], contexts[train:]
    scores = [_left_out(readout, names, here, codes[:train]) for readout in readouts] if train >= 3 else [{}]
    best = {name: int(np.argmax([score[name] for score in scores])) for name in scores[0]}
    known = {name: scores[i][name] for name, i in best.items()}
    if not len(there):
        return known, {}
    asked = codes[train:].reshape(-1, codes.shape[-1])
    guesses = [_score(names, there, readout(names, here, codes[:train], asked)) for readout in readouts]
    return known, {name: guesses[best.get(name, 0)][name] for name in guesses[0]}


def _left_out(readout: Readout, names: Sequence[str], contexts: np.ndarray, codes: np.ndarray) -> Scores:
    others = [np.arange(len(codes)) != e for e in range(len(codes))]
    guess = [readout(names, contexts[kept], codes[kept], codes[e]) for e, kept in enumerate(others)]
    return _score(names, contexts, np.concatenate(guess))


def _score(names: Sequence[str], contexts: np.ndarray, guess: np.ndarray) -> Scores:
    """Of guesses [E * J, f]."""
    truth = _features(names, contexts)
    truth = np.repeat(truth, len(guess) // len(truth), axis=0)
    owners = [name for name in names for _ in range(2 if "angle" in name else 1)]
    found: Scores = {}
    for name in names:
        own = [i for i, owner in enumerate(owners) if owner == name]
        spread = ((truth[:, own] - truth[:, own].mean(axis=0)) ** 2).sum()
        if spread > 1e-9 * (truth[:, own] ** 2).sum():
            found[name] = float(1 - ((truth[:, own] - guess[:, own]) ** 2).sum() / spread)
    return found


def overall(scores: Mapping[str, float]) -> float:
    """The mean of R^2 over all that is hidden; NaN for nothing."""
    return float(np.mean(list(scores.values()))) if scores else float("nan")


def _features(names: Sequence[str], contexts: np.ndarray) -> np.ndarray:
    return np.asarray(context_features(tuple(names), jnp.asarray(contexts)), np.float64)


def _candidates(names: Sequence[str], contexts: np.ndarray) -> np.ndarray:
    """Contexts [n, c] in and around the range of training, evenly."""
    low, high = contexts.min(axis=0), contexts.max(axis=0)
    around, angle = STRETCH * (high - low), np.array(["angle" in name for name in names])
    low, high = np.where(angle, 0.0, low - around), np.where(angle, 2 * np.pi, high + around)
    return low + (high - low) * qmc.Halton(len(names), scramble=False).random(CANDIDATES)


def _kernel(a: np.ndarray, b: np.ndarray, curvature: float) -> np.ndarray:
    """Covariance [n, m] of polynomials of second order in each number of a [n, f] and b [m, f], and their products."""
    product = a[:, None] * b[None]
    return (1 + product + curvature * product**2).prod(axis=-1)
