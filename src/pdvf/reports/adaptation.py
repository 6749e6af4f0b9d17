"""What follows from the episodes of `experiment.adaptation`: does a method adapt, or has it selected a policy?

Only training environments decide. Identification in test environments is reported, not used: regressed in training
environments, scored in test ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pdvf.config import ConfigError, from_dict
from pdvf.experiment.adaptation import ADAPTATION, AXES
from pdvf.experiment.errors import RunError
from pdvf.experiment.pytrees import require_axes
from pdvf.experiment.store import RunStore
from pdvf.families import make_family
from pdvf.methods.oracle import context_features
from pdvf.reports.statistics import Estimate, difference

PENALTY = 1e-3
"""Of the ridge regression, for each row."""
LEAST = 0.01
"""Share of the return that another environment's inference has to cost, for a method that adapts."""


class Adaptation(NamedTuple):
    """What one method was measured to do."""

    method: str
    steps: tuple[int, ...]
    known: Mapping[str, np.ndarray]  # R^2 [k] of each hidden number in training environments left out
    unseen: Mapping[str, np.ndarray]  # the same in test environments
    choice: float  # share of the actions' variance, in the same observations, that comes from what is inferred
    own: float  # mean return in training environments
    loss: Estimate  # of return there, by what is inferred in another one

    @property
    def adapts(self) -> bool:
        """Whether what it infers is worth anything."""
        return self.loss.low > 0 and self.loss.value > LEAST * abs(self.own)

    def sentence(self, name: str | None = None) -> str:
        """For people, about the method by this name."""
        after = "/".join(map(str, self.steps))
        shows = "; ".join(f"{number} {_row(values)}" for number, values in self.known.items())
        plural = "" if self.steps == (1,) else "s"
        tells = f"R² of what is hidden after {after} step{plural}: {shows or 'too few environments to say'}"
        costs = f"another environment's inference costs {self.loss.value:.4g} of a return of {self.own:.4g}"
        found = "adapts" if self.adapts else "selection, not adaptation; best-single does as well"
        choice = f"{100 * self.choice:.0f} % of how it acts is its choice"
        return f"{name or self.method}: {found} ({tells}; {choice}; {costs})"


def _row(values: np.ndarray) -> str:
    return "/".join(f"{max(float(value), 0.0):.2f}" for value in values)


def summarise(method: str, names: Sequence[str], arrays: Mapping[str, np.ndarray]) -> Adaptation:
    """From the arrays of `AXES`; R^2 is the mean over seeds."""
    train, contexts, codes = int(arrays["train_count"]), arrays["contexts"], arrays["codes"]
    own, swapped = (np.moveaxis(arrays[name], 0, 1).astype(float) for name in ("own", "swapped"))

    def each(score: Callable[[np.ndarray], dict[str, float]]) -> dict[str, np.ndarray]:
        """The mean over seeds of a score of codes [E, J, d], after so many steps, by name."""
        found = [[score(seed[k]) for k in range(seed.shape[0])] for seed in codes]
        return {name: np.array([[s[name] for s in seed] for seed in found]).mean(axis=0) for name in found[0][0]}

    return Adaptation(
        method,
        tuple(arrays["steps"].tolist()),
        each(lambda code: left_out_r2(names, contexts[:train], code[:train])),
        each(lambda code: unseen_r2(names, contexts, code, train)),
        float(arrays["choice"].mean()),
        float(own.mean()),
        difference(own, swapped, paired=True),
    )


def read(store: RunStore) -> tuple[Adaptation, ...]:
    """What was measured in a run, method by method; nothing where its family cannot be made."""
    artefacts = store.names(ADAPTATION)
    if not artefacts:
        return ()
    try:
        config = from_dict(store.config)
        names = make_family(config.family, config.environment).context_names
    except ConfigError:
        return ()
    found = []
    for artefact in artefacts:
        arrays = store.load_arrays(artefact)
        where = f"artefact {artefact!r} in {store.folder}"
        require_axes(where, arrays, AXES, tuple(AXES), c=len(names))
        count, environments = int(arrays["train_count"]), len(arrays["contexts"])
        if not 0 < count < environments or not all(array.size for array in arrays.values()):
            raise RunError(f"{where} has {count} of {environments} environments for training, expected some of both")
        found.append(summarise(artefact.removeprefix(ADAPTATION), names, arrays))
    return tuple(found)


# Regression


def left_out_r2(
    names: Sequence[str], contexts: np.ndarray, codes: np.ndarray, penalty: float = PENALTY
) -> dict[str, float]:
    """R^2 of the contexts [E, c] in environments that the ridge regression from codes [E, J, d] has not seen, by name.

    Angles are regressed as cosine and sine, and scored together. Numbers that do not vary have no score.
    """
    environments, episodes, _ = codes.shape
    if environments < 3:
        return {}
    x, y, owners = _rows(names, contexts, codes)
    groups = np.repeat(np.arange(environments), episodes)
    guess = np.asarray(cross_val_predict(_ridge(x, penalty), x, y, groups=groups, cv=LeaveOneGroupOut()))
    return _scores(owners, y, guess.reshape(y.shape))


def unseen_r2(names: Sequence[str], contexts: np.ndarray, codes: np.ndarray, train: int) -> dict[str, float]:
    """The same, regressed in the first `train` environments and scored in the others."""
    x, y, owners = _rows(names, contexts, codes)
    here = train * codes.shape[1]
    guess = np.asarray(_ridge(x[:here], PENALTY).fit(x[:here], y[:here]).predict(x[here:])).reshape(y[here:].shape)
    return _scores(owners, y[here:], guess)


def overall(scores: Mapping[str, float]) -> float:
    """The mean of R^2 over all that is hidden; NaN for nothing."""
    return float(np.mean(list(scores.values()))) if scores else float("nan")


def _rows(names: Sequence[str], contexts: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Codes [E * J, d], what is regressed on them [E * J, f], and the name of the hidden number that each is of."""
    owners = [name for name in names for _ in range(2 if "angle" in name else 1)]
    targets = np.asarray(context_features(tuple(names), jnp.asarray(contexts)), np.float64)
    return codes.reshape(-1, codes.shape[-1]).astype(np.float64), np.repeat(targets, codes.shape[1], axis=0), owners


def _ridge(x: np.ndarray, penalty: float) -> Any:
    return make_pipeline(StandardScaler(), Ridge(alpha=penalty * len(x)))


def _scores(owners: Sequence[str], truth: np.ndarray, guess: np.ndarray) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in dict.fromkeys(owners):
        own = [i for i, owner in enumerate(owners) if owner == name]
        spread = ((truth[:, own] - truth[:, own].mean(axis=0)) ** 2).sum()
        if spread > 1e-9 * (truth[:, own] ** 2).sum():
            found[name] = float(1 - ((truth[:, own] - guess[:, own]) ** 2).sum() / spread)
    return found
