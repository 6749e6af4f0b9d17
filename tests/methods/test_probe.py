"""Which policy probes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import Force, ToyProblem

from pdvf.engines import Engine, NativeEngine
from pdvf.families.base import Array
from pdvf.phases.probe import best_policy, lost_beginnings, probe_policy
from tiny import make_actors, relaxed

PUSHES = (0.9, 0.3, 0.6, -1.0)  # what the policies do, always
LEDGE = 0.5


@dataclass(frozen=True)
class Ledge(Force):
    """Every step earns the action. Whoever pushes hard where the gain is 1 falls at the first step; `prize` is what
    the fall earns."""

    prize: float = 0.0
    horizon = 20

    def transition(self, context: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        push = jnp.clip(action[0], -1.0, 1.0)
        falls = (context[0] > 0.9) & (push > LEDGE)
        return state, jnp.where(falls, self.prize, push), falls


@dataclass(frozen=True)
class LedgeProblem(ToyProblem):
    """That family in the toy's place."""

    prize: float = 0.0

    @cached_property
    def engine(self) -> Engine:
        return NativeEngine(Ledge(self.prize))


@pytest.fixture(scope="module")
def policies():
    """[1, 2, 2, ...], one checkpoint of two environments and two seeds."""
    family = Force()
    actors = make_actors(4, family.observation, family.action, jax.random.key(0))
    last = actors.layers[2]
    fixed = (jnp.zeros_like(last.weight), jnp.asarray(PUSHES)[:, None])
    actors = eqx.tree_at(lambda a: (a.layers[2].weight, a.layers[2].bias), actors, fixed)
    return jax.tree.map(lambda x: x.reshape(1, 2, 2, *x.shape[1:]), actors)


def push(actor) -> float:
    return float(actor.layers[2].bias[0])


def test_the_best_policy_falls_and_does_not_probe(policies):
    problem = LedgeProblem()
    with relaxed():
        assert push(best_policy(problem, policies)) == pytest.approx(0.9)  # 18 in three environments, 0 in one
        assert push(probe_policy(problem, policies)) == pytest.approx(0.3)  # the best of those that fall nowhere


def test_lost_beginnings_are_counted(policies):
    flat = jax.tree.map(lambda x: x.reshape(4, *x.shape[3:]), policies)
    with relaxed():
        lost = lost_beginnings(LedgeProblem(), flat, jnp.asarray(1.0))
    np.testing.assert_allclose(lost, [0.25, 0.0, 0.25, 0.0])


def test_an_end_that_pays_is_no_loss(policies):
    problem = LedgeProblem(prize=50.0)
    with relaxed():
        assert push(probe_policy(problem, policies)) == pytest.approx(0.9)


def test_where_nothing_ends_the_best_policy_probes(policies):
    problem = ToyProblem()
    with relaxed():
        assert push(probe_policy(problem, policies)) == push(best_policy(problem, policies))
