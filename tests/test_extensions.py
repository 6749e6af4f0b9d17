"""What an extension touches: one file each, kept in tests/extensions; an executor has its registration besides.

docs/architecture.md has the table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pdvf.methods
from extensions import threads
from extensions.tally import Tally
from extensions.worst_tenth import WorstTenth
from pdvf.cli.main import main
from pdvf.config import to_dict
from pdvf.config.presets import preset
from pdvf.engines import NativeEngine, make_engine
from pdvf.experiment.executors import EXECUTORS
from pdvf.experiment.plan import Task, plan
from pdvf.experiment.progress import ignore
from pdvf.experiment.store import RunStore
from pdvf.families import builtin, gym_ids, make_family
from pdvf.methods import AtOnce, Method, play_agent, registered
from pdvf.methods.ppo_all import Unconditioned
from pdvf.paper.pipeline import Problem, artefact_shapes
from pdvf.reports.style import look
from tiny import TINY, make_actors, random_run, relaxed
from toy import Force

HERE = Path(__file__).parent
TABLE = HERE.parent / "docs" / "architecture.md"


def test_the_table_names_files_that_are_there():
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| (\d)[^|]* \| `(tests/extensions/[^`]+)`", TABLE.read_text(), re.MULTILINE)
    files = {HERE.parent / file for _, file in rows}
    assert files == {file for file in (HERE / "extensions").rglob("*.py") if file.name != "__init__.py"}
    assert [int(count) for count, _ in rows] == [2 if "threads" in file else 1 for _, file in rows]


@pytest.fixture
def more_families(monkeypatch) -> None:
    """The folder of built-in families goes on in another one."""
    monkeypatch.setattr(builtin, "__path__", [*builtin.__path__, str(HERE / "extensions" / "families")])


def test_a_family(more_families, capsys):
    assert main(["list"]) == 0
    assert "drift         a point that drifts" in capsys.readouterr().out
    assert gym_ids.gym_id("drift") == "pdvf/Drift-v0"
    config = preset("drift", "smoke")
    engine = make_engine(make_family("drift", config.environment))
    _, outcome = engine.step(jnp.array([[0.25]]), jnp.zeros((1, 1)), jnp.array([[-1.0]]))
    np.testing.assert_allclose(outcome.reward, [-0.75])
    gym_ids.register()
    try:
        environment = gymnasium.make("pdvf/Drift-v0", context=4)
        environment.reset(seed=0)
        observation, reward, *_ = environment.step(np.zeros(1, np.float32))
        assert (observation.tolist(), reward) == ([0.5], -0.5)
    finally:
        del gymnasium.registry["pdvf/Drift-v0"]


@pytest.fixture
def more_methods(monkeypatch) -> Iterator[dict[str, Method]]:
    """The folder of methods goes on in another one."""
    monkeypatch.setattr(pdvf.methods, "__path__", [*pdvf.methods.__path__, str(HERE / "extensions" / "methods")])
    yield registered()
    for name in ("first", "known"):
        del sys.modules[f"pdvf.methods.{name}"]
        delattr(pdvf.methods, name)


def test_a_method_and_a_rule_for_choosing(more_methods, tmp_path, monkeypatch):
    assert list(more_methods) == [*pdvf.methods.METHODS, "first", "known"]
    monkeypatch.setattr("pdvf.reports.style.METHODS", more_methods)
    assert look("first").label == "First"
    problem, chosen = Problem(TINY), [more_methods["first"], more_methods["known"]]
    with relaxed():
        store = random_run(tmp_path / "run")
        EXECUTORS["serial"](plan(store, problem, chosen, ()), ignore)
        played = {method.name: store.load_arrays(f"returns-{method.name}")["honest"] for method in chosen}
        assert played["first"].shape == (1, 4, 2)
        assert played["known"].shape == (2, 4, 2)
        adapter = jax.tree.map(lambda x: x[1], store.load("adapter", artefact_shapes(problem)["adapter"]))
        s0, z_d = jnp.array([2.5, 0.2]), adapter.train_z_d[0]
        z_pi, value = sys.modules["pdvf.methods.known"].best_known(adapter, s0, z_d)
        values = [float(adapter.predict(s0, known, z_d)) for known in adapter.train_z_pi]
    assert np.argmax(values) == np.flatnonzero((adapter.train_z_pi == z_pi).all(axis=1))
    assert float(value) == pytest.approx(max(values))


@dataclass(frozen=True)
class Careful(Force):
    """A family names its objective."""

    objective = WorstTenth


def test_an_objective():
    worths = jnp.arange(40.0).reshape(2, 20)
    np.testing.assert_allclose(WorstTenth.summary(worths, -1), [0.5, 20.5])
    actor = jax.tree.map(lambda x: x[0], make_actors(1, Force().observation, Force().action, jax.random.key(0)))
    contexts = jnp.array([[1.0], [-0.6]])
    played = [
        play_agent(NativeEngine(family), Unconditioned(actor), contexts, None, jax.random.key(1))
        for family in (Force(), Careful())
    ]
    np.testing.assert_array_equal(*played)  # one episode is worth the same, several are not


def test_an_executor_and_a_progress_front_end(tmp_path, monkeypatch):
    monkeypatch.setitem(EXECUTORS, "threads", threads.run)
    store = RunStore.create(tmp_path / "run", to_dict(TINY), "test")
    first = Task(store, "a", (), ("agent-a",), lambda: AtOnce("a", lambda: jnp.zeros(1)))
    then = Task(store, "b", ("agent-a",), ("agent-b",), lambda: AtOnce("b", lambda: jnp.ones(1)))
    never = Task(store, "c", ("agent-none",), ("agent-c",), lambda: AtOnce("c", lambda: jnp.ones(1)))
    tally = Tally()
    with relaxed():
        assert EXECUTORS["threads"]([then, first, never], tally, workers=2) == [never]
    assert store.has("agent-a")
    assert store.has("agent-b")
    assert tally == {"start": 2, "stage": 2, "finish": 2}
