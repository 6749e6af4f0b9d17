"""What a method costs: the environment steps that reinforcement learning spent on it."""

from __future__ import annotations

from pdvf.experiment.store import RunStore
from pdvf.methods.base import agent_artefact

PHASE_1 = ("policies", "upper_bound")
"""Both are left by the same training."""


def environment_steps(store: RunStore, method: str) -> int | None:
    """Steps of the trainings that a method's agent comes from, directly or not; None where none was recorded."""
    waiting, seen, steps = [agent_artefact(method)], set[str](), list[float]()
    while waiting:
        name = waiting.pop()
        if name in seen or not store.has(name):
            continue
        seen |= {*PHASE_1} if name in PHASE_1 else {name}
        history = store.info(name).get("history") or ()
        steps += [stage["steps"] for stage in history if isinstance(stage.get("steps"), int | float)]
        waiting += store.manifest(name)["inputs"]
    return round(sum(steps)) if steps else None
