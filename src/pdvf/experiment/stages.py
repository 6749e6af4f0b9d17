"""A phase as a sequence of stages, run so that it can be stopped anywhere and goes on with the same bits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.staged import Staged, State
from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Event, Listener
from pdvf.experiment.pytrees import is_key
from pdvf.experiment.store import RunStore


def run_phase(
    store: RunStore,
    phase: Staged[Any],
    artefacts: Sequence[str],
    inputs: Sequence[str],
    on_event: Listener,
) -> None:
    """Makes the artefacts of a phase, unless they are there, from where it was stopped.

    The caller holds the store's lock. Each artefact's `info` has the metrics of every stage under `history` and the
    time spent under `seconds`. A stage is saved while the next one computes, and counts as done once it is saved.
    A phase without artefacts is made each time.
    """
    if artefacts and finished(store, phase.name, artefacts):
        return

    began = time.perf_counter()
    done, history, before, state = _resume(store, phase)

    def say(kind: str, stage: int, seconds: float, metrics: Mapping[str, float]) -> None:
        stages = phase.stages if artefacts else 0
        on_event(Event(time.time(), store.folder.name, phase.name, kind, stage, stages, seconds, metrics))

    say("start", done, before, {})

    def keep(done: int, state: Any, info: dict[str, Any], metrics: Mapping[str, float]) -> None:
        if done < phase.stages:
            store.save_stage(phase.name, done, state, info, inputs)
        say("stage", done, info["seconds"], metrics)

    with ThreadPoolExecutor(1) as aside:
        saving = aside.submit(lambda: None)
        for stage in range(done, phase.stages):
            stage_began = time.perf_counter()
            state, made = jax.block_until_ready(phase.advance(state, stage))
            _finite(phase.name, stage, state)
            history.append({name: np.asarray(value).tolist() for name, value in made.items()})
            metrics = {name: _mean(np.asarray(value)) for name, value in made.items()}
            if "steps" in metrics:
                metrics["steps_per_second"] = metrics.pop("steps") / (time.perf_counter() - stage_began)
            seconds = before + time.perf_counter() - began
            saving.result()  # never two states waiting
            info = {"history": tuple(history), "seconds": seconds}
            saving = aside.submit(keep, stage + 1, state, info, metrics)
        saving.result()

    made = phase.finish(state)
    if set(made) != set(artefacts):
        raise ValueError(f"phase {phase.name!r} made {sorted(made)}, expected {sorted(artefacts)}")
    made = jax.block_until_ready(dict(made))
    seconds = before + time.perf_counter() - began
    for name, tree in made.items():
        if store.has(name):  # saved before a kill, to the same bits
            store.verify(name)
        else:
            store.save(name, tree, info={"history": history, "seconds": seconds}, inputs=inputs)
    store.clear_stages(phase.name)
    say("finish", phase.stages, seconds, {})


def finished(store: RunStore, phase: str, artefacts: Sequence[str]) -> bool:
    """Whether the artefacts of a phase are there; if so they are verified, and stages that a kill left are removed."""
    if not all(store.has(name) for name in artefacts):
        return False
    for name in artefacts:
        store.verify(name)
    store.clear_stages(phase)
    return True


def _resume(store: RunStore, phase: Staged[State]) -> tuple[int, list[dict[str, Any]], float, State]:
    """Stages done, their metrics, the seconds they took, and the state after them."""
    latest = store.latest_stage(phase.name)
    if latest is None:
        return 0, [], 0.0, _strong(phase.start())
    done, name = latest
    state = store.load(name, phase.start())
    info = store.info(name)
    return done, list(info.get("history") or ()), float(info.get("seconds") or 0.0), state


def _finite(phase: str, stage: int, state: Any) -> None:
    """Raises where a stage computed NaN: a simulator's buffers were too small, or learning diverged."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and bool(jnp.any(jnp.isnan(leaf))):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise RunError(
                f"stage {stage + 1} of {phase} computed NaN in {name}, expected numbers: the simulator lost contacts "
                "(it says so above) or does not know a context, or learning diverged; try another engine or a smaller "
                "learning rate"
            )


def _strong(tree: State) -> State:
    """Without JAX's weak types, which would make the second stage compile everything again."""
    return jax.tree.map(lambda x: x if is_key(x) else jax.lax.convert_element_type(x, x.dtype), tree)


def _mean(values: np.ndarray) -> float:
    """Mean of the numbers among values, NaN where there are none: no episode may have ended in a short stage."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else float("nan")
