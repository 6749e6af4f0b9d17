"""What an extension touches: one file each, kept in tests/extensions; an executor has its registration besides."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from extensions import threads
from extensions.tally import Tally
from extensions.worst_tenth import WorstTenth
from pdvf.config import to_dict
from pdvf.engines import NativeEngine
from pdvf.experiment.executors import EXECUTORS
from pdvf.experiment.plan import Task
from pdvf.experiment.store import RunStore
from pdvf.methods import AtOnce, play_agent
from pdvf.methods.multitask_ppo import Unconditioned
from tiny import TINY, make_actors, relaxed
from toy import Force


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
