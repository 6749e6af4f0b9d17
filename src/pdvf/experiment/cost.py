"""What a method costs: the environment steps of everything that was learned for it; evaluation does not count."""

from __future__ import annotations

from pdvf.experiment.store import RunStore
from pdvf.methods.base import AGENT
from pdvf.paper.pipeline import PHASES

MOST = 1e15
"""Steps of a stage; a run may be a stranger's, and what it says be anything."""
MAKERS = {leaf: name for name, phase in PHASES.items() for leaf in phase.leaves}
"""The phase that leaves an artefact: what it leaves with others is paid for once."""


def environment_steps(store: RunStore) -> dict[str, int]:
    """Steps of the trainings that each method's agent comes from, directly or not, where they were recorded."""
    found = {name.removeprefix(AGENT): _steps(store, name) for name in store.names(AGENT) if "-stage-" not in name}
    return {method: steps for method, steps in found.items() if steps is not None}


def _steps(store: RunStore, agent: str) -> int | None:
    waiting, seen, steps = [agent], set[str](), list[float]()
    while waiting:
        name = waiting.pop()
        maker = MAKERS.get(name, name)
        if maker in seen or not store.has(name):
            continue
        seen.add(maker)
        counts = (stage.get("steps") for stage in store.info(name).get("history") or () if isinstance(stage, dict))
        steps += [count for count in counts if isinstance(count, int | float) and 0 <= count < MOST]
        waiting += store.manifest(name)["inputs"]
    return round(sum(steps)) if steps else None
