"""PD-VF-plus (ours): PD-VF's probing and embeddings, with another way to choose (option `plus.by`)."""

from __future__ import annotations

from pdvf.core.arrays import Array
from pdvf.methods.base import Inputs, Method, Training, agent_artefact
from pdvf.methods.experienced import train_by_experience
from pdvf.methods.imagined import cannot_imagine, train_by_imagination
from pdvf.paper.pipeline import Problem


def train_pd_vf_plus(problem: Problem, inputs: Inputs, key: Array) -> Training:
    """As the configuration says."""
    imagines = problem.config.plus.by == "imagination"
    return (train_by_imagination if imagines else train_by_experience)(problem, inputs, key)


def _needs(problem: Problem) -> tuple[str, ...]:
    plus = problem.config.plus
    if plus.by == "imagination":
        return ("adapter", "trajectories")
    return ("adapter", "policies", *((agent_artefact("ppo-all"),) if plus.generalist else ()))


def _unsuited(problem: Problem) -> str:
    return cannot_imagine(problem.engine.family) if problem.config.plus.by == "imagination" else ""


PD_VF_PLUS = Method(
    "pd-vf-plus",
    "PD-VF whose choice is made by imagined episodes, or by experience in similar environments (ours)",
    train_pd_vf_plus,
    _needs,
    unsuited=_unsuited,
)
