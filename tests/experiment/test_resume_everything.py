"""Every phase and every method goes on from a stage that was saved, to the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import pytest

from pdvf.experiment.comparison import method_key
from pdvf.experiment.plan import Task, find_task, plan, recipes_for
from pdvf.experiment.progress import ignore
from pdvf.experiment.store import RunStore
from pdvf.methods import METHODS, agent_artefact
from pdvf.paper.pipeline import PHASES, ArtefactShapes, Problem, artefact_shapes
from tiny import TINY, random_run, relaxed

PROBLEM = Problem(TINY)


class Killed(BaseException):
    """Stands for a kill right after a stage was saved."""


@pytest.fixture(scope="module", autouse=True)
def checks() -> Iterator[None]:
    """Without those that whole programs trip over."""
    with relaxed():
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> RunStore:
    phases = ("train", "collect", "embed", "fit", "bound")
    return random_run(tmp_path_factory.mktemp("untrained") / "run", phases=phases)


def compiled_once(task: Task) -> Task:
    """The same task, which keeps its phase and with it the programs that were compiled for it."""
    return replace(task, make=cache(task.make))


def in_two_goes(task: Task, again: Task, patch: pytest.MonkeyPatch) -> None:
    """Stops right after a stage was saved, then makes the rest with another object from what is on the disk."""
    store, save = task.store, RunStore.save_stage

    def save_and_die(self: RunStore, *given: Any, **named: Any) -> None:
        save(self, *given, **named)
        raise Killed

    with patch.context() as patched:
        patched.setattr(RunStore, "save_stage", save_and_die)
        with pytest.raises(Killed):
            task.run(ignore)
    latest = store.latest_stage(task.name)
    assert latest is not None
    assert latest[0] == 1
    again.run(ignore)
    assert store.latest_stage(task.name) is None


def bits(store: RunStore, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: (store.manifest(name)["sha256"], store.info(name)["history"]) for name in names}


def removed(store: RunStore, names: tuple[str, ...]) -> dict[str, Any]:
    """What artefacts were, which are now gone."""
    found = bits(store, names)
    for name in names:
        store.remove(name)
    return found


@pytest.mark.parametrize("name", [name for name in PHASES if name not in ("collect", "evaluate")])  # one stage each
def test_phase(name, store, monkeypatch):
    leaves, task = PHASES[name].leaves, find_task(store, PROBLEM, name)
    again = compiled_once(task)
    random = {leaf: store.load(leaf, artefact_shapes(PROBLEM)[leaf]) for leaf in leaves}
    for leaf in leaves:
        store.remove(leaf)
    in_two_goes(task, again, monkeypatch)
    made = removed(store, leaves)
    again.run(ignore)
    assert bits(store, leaves) == made
    for leaf, tree in random.items():  # what other phases were made from
        store.save(leaf, tree)


SEVERAL_STAGES = ("rl2", "maml", "ppo-dyn", "ppo-all", "kmeans", "no-agg-policy", "oracle", "rma", "pd-vf-plus")


def test_no_other_method_can_be_stopped_in_between(store):
    others = [method for name, method in METHODS.items() if name not in SEVERAL_STAGES]
    for method in others:
        inputs = {needed: store.load(needed, artefact_shapes(PROBLEM)[needed]) for needed in method.needs}
        training = method.train(PROBLEM, inputs, method_key(PROBLEM, method))
        assert training.stages == 1
        made, _ = training.advance(training.start(), 0)
        assert alike(made[agent_artefact(method.name)], jax.eval_shape(lambda m=method: m.skeleton(PROBLEM)))


def alike(a: Any, b: Any) -> bool:
    """Whether two pytrees have the same structure, shapes and types."""
    same = jax.tree.map(lambda x, y: (x.shape, x.dtype) == (y.shape, y.dtype), a, b)
    return all(jax.tree.leaves(same))


@pytest.mark.parametrize("name", SEVERAL_STAGES)
def test_method(name, store, monkeypatch):
    agent = agent_artefact(name)
    *others, task = (task for task in plan(store, PROBLEM, [METHODS[name]], ()) if task.name in METHODS)
    for other in others:
        other.run(ignore)

    if store.has(agent):
        store.remove(agent)
    again = compiled_once(task)
    in_two_goes(task, again, monkeypatch)
    made = removed(store, (agent,))
    again.run(ignore)
    assert bits(store, (agent,)) == made
    store.load(agent, ArtefactShapes(PROBLEM, recipes_for([METHODS[name]]))[agent])  # or it raises
