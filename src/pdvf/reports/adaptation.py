"""What follows from the episodes of `experiment.adaptation`: does a method adapt, or has it selected a policy?

Only training environments decide. Identification in test environments is reported, not used: read off in a way that is
fitted and chosen in training environments, scored in test ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pdvf.config import ConfigError, from_dict
from pdvf.experiment.adaptation import ADAPTATION, AXES
from pdvf.experiment.errors import RunError
from pdvf.experiment.pytrees import require_axes
from pdvf.experiment.store import RunStore
from pdvf.families import make_family
from pdvf.reports.readouts import identified
from pdvf.reports.statistics import Estimate, difference

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

    found = [[identified(names, contexts, code, train) for code in seed] for seed in codes]

    def mean(kind: int) -> dict[str, np.ndarray]:
        """Over seeds, after so many steps, by name."""
        rows = [[scores[kind] for scores in seed] for seed in found]
        return {name: np.array([[s[name] for s in seed] for seed in rows]).mean(axis=0) for name in rows[0][0]}

    return Adaptation(
        method,
        tuple(arrays["steps"].tolist()),
        mean(0),
        mean(1),
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
