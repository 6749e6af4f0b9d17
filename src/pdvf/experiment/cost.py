"""What a method costs: the environment steps that reinforcement learning spent on it."""

from __future__ import annotations

from pdvf.experiment.store import RunStore
from pdvf.methods.base import AGENT


def environment_steps(store: RunStore) -> dict[str, int]:
    """Steps of the trainings that each method's agent comes from, directly or not, where they were recorded."""
    found = {name.removeprefix(AGENT): _steps(store, name) for name in store.names(AGENT) if "-stage-" not in name}
    return {method: steps for method, steps in found.items() if steps is not None}


def _steps(store: RunStore, agent: str) -> int | None:
    waiting, seen, steps = [agent], set[str](), list[float]()
    while waiting:
        name = waiting.pop()
        if name in seen or not store.has(name):
            continue
        seen.add(name)
        history = store.info(name).get("history") or ()
        steps += [stage["steps"] for stage in history if isinstance(stage.get("steps"), int | float)]
        waiting += store.manifest(name)["inputs"]
    return round(sum(steps)) if steps else None
