"""PD-VF, phase by phase, in the paper's order. Who reads this file and `phases` knows what the method does.

Each phase is a sequence of stages: `start` makes its first state, `advance` makes one stage of progress, `finish`
hands over its artefacts. States and artefacts are pytrees of arrays, so a run can stop after any stage and go on to
the same result. No phase knows files; `runs` saves, `cli` shows.

    ReinforcementLearning   policies for every environment                                   (section 3.2)
    Collection              their trajectories in every training environment                 (section 3.2)
    SelfSupervised          dynamics embeddings z_d and policy embeddings z_pi               (section 3.3)
    Supervised              value function W(s0, z_pi, z_d), aggregation for decoder and W   (section 3.4)
    Evaluation              one episode in each environment                                  (section 3.5)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax

from pdvf.paper.evaluation import AXES, Evaluation, Row, return_rows
from pdvf.paper.probe import best_policy, probe_policy
from pdvf.paper.problem import PROBE_NOISE, Problem, finished_policies, flat_policies, transfer
from pdvf.paper.reinforcement import ReinforcementLearning
from pdvf.paper.selfsupervised import Collection, SelfSupervised
from pdvf.paper.supervised import Supervised

__all__ = [
    "AXES",
    "PHASES",
    "PROBE_NOISE",
    "Collection",
    "Evaluation",
    "PhaseSpec",
    "Problem",
    "ReinforcementLearning",
    "Row",
    "SelfSupervised",
    "Supervised",
    "artefact_shapes",
    "best_policy",
    "finished_policies",
    "flat_policies",
    "probe_policy",
    "return_rows",
    "transfer",
]


class PhaseSpec(NamedTuple):
    """How a phase is made from the artefacts it needs, and what it leaves."""

    make: Callable[..., Any]
    needs: tuple[str, ...]
    leaves: tuple[str, ...]


PHASES: dict[str, PhaseSpec] = {
    "train": PhaseSpec(ReinforcementLearning, (), ("policies", "upper_bound")),
    "collect": PhaseSpec(Collection, ("policies",), ("trajectories",)),
    "embed": PhaseSpec(SelfSupervised, ("trajectories",), ("dynamics", "policy")),
    "fit": PhaseSpec(Supervised, ("policies", "trajectories", "dynamics", "policy"), ("adapter", "initial_adapter")),
    "evaluate": PhaseSpec(Evaluation, ("policies", "upper_bound", "policy", "adapter"), ("evaluation",)),
}


class ArtefactShapes(dict[str, Any]):
    """Structure, shapes and types of artefacts by name, worked out without computing any, and only when asked for."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self._problem = problem

    def __missing__(self, name: str) -> Any:
        spec = next((spec for spec in PHASES.values() if name in spec.leaves), None)
        if spec is None:
            raise KeyError(name)

        def outputs(inputs: tuple[Any, ...]) -> dict[str, Any]:
            phase = spec.make(self._problem, *inputs)
            state = phase.advance(phase.start(), 0)[0] if phase.stages == 1 else phase.start()
            return phase.finish(state)

        self.update(jax.eval_shape(outputs, tuple(self[needed] for needed in spec.needs)))
        return self[name]


@cache
def artefact_shapes(problem: Problem) -> ArtefactShapes:
    """The shapes of all artefacts of a problem, by name."""
    return ArtefactShapes(problem)
