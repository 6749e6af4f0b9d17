"""PD-VF, phase by phase, in the paper's order. Who reads this file and those it imports knows what the method does.

Each phase is a sequence of stages: `start` makes its first state, `advance` makes one stage of progress, `finish`
hands over its artefacts. States and artefacts are pytrees of arrays, so a run can stop after any stage and go on to
the same result. No phase knows files; `experiment` saves, `cli` shows.

    reinforcement_learning   policies for every training environment                          (section 3.2)
    collection               their trajectories in every training environment                 (section 3.2)
    SelfSupervised           dynamics embeddings z_d and policy embeddings z_pi               (section 3.3)
    Supervised               value function W(s0, z_pi, z_d), aggregation for decoder and W   (section 3.4)
    upper_bound              policies for the test environments, for PPOenv and figures       (section 4.3)
    evaluation               adapted episodes in each environment, for figures                (section 3.5)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import jax

from pdvf.paper import untrained
from pdvf.paper.evaluation import AXES as AXES
from pdvf.paper.evaluation import evaluation
from pdvf.paper.probe import best_policy as best_policy
from pdvf.paper.probe import probe_policy as probe_policy
from pdvf.paper.probe import probe_steps as probe_steps
from pdvf.paper.problem import PROBE_NOISE as PROBE_NOISE
from pdvf.paper.problem import Problem
from pdvf.paper.problem import finished_policies as finished_policies
from pdvf.paper.problem import transfer as transfer
from pdvf.paper.reinforcement import reinforcement_learning, upper_bound
from pdvf.paper.selfsupervised import SelfSupervised, collection
from pdvf.paper.supervised import Supervised


class Recipe(NamedTuple):
    """How a phase is made from a problem and the artefacts it needs, and what it leaves."""

    make: Callable[..., Any]
    needs: tuple[str, ...]
    untrained: Mapping[str, Callable[[Problem], Any] | None]
    """What it leaves by name, and from the configuration alone the same untrained; None for what is only read array by
    array."""
    most_parts: Callable[[Problem], int] = lambda problem: 1
    """How many parts it can be cut into; more than one only where `make` gives a `PolicyEnsemble`."""

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the artefacts that it leaves."""
        return tuple(self.untrained)


def _policies(problem: Problem) -> int:
    return problem.contexts.shape[0] * problem.config.policy_seeds


PHASES: dict[str, Recipe] = {
    "train": Recipe(reinforcement_learning, (), {"policies": untrained.policies}, _policies),
    "collect": Recipe(collection, ("policies",), {"trajectories": untrained.trajectories}),
    "embed": Recipe(SelfSupervised, ("trajectories",), {"dynamics": untrained.dynamics, "policy": untrained.policy}),
    "fit": Recipe(
        Supervised,
        ("policies", "trajectories", "dynamics", "policy"),
        {"adapter": untrained.adapter, "initial_adapter": untrained.initial_adapter},
    ),
    "bound": Recipe(upper_bound, (), {"upper_bound": untrained.upper_bound}),
    "evaluate": Recipe(evaluation, ("policies", "upper_bound", "policy", "adapter"), {"evaluation": None}),
}


class ArtefactShapes(dict[str, Any]):
    """Structure, shapes and types of artefacts by name, from the configuration alone."""

    def __init__(self, problem: Problem, recipes: Mapping[str, Recipe]) -> None:
        super().__init__()
        self._problem = problem
        self._makers = {name: make for recipe in recipes.values() for name, make in recipe.untrained.items() if make}

    def __missing__(self, name: str) -> Any:
        self[name] = jax.eval_shape(lambda: self._makers[name](self._problem))
        return self[name]


@cache
def artefact_shapes(problem: Problem) -> ArtefactShapes:
    """The shapes of the artefacts of all phases, by name."""
    return ArtefactShapes(problem, PHASES)
