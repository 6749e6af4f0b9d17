"""Which policy probes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.core.arrays import Array
from pdvf.engines import Engine, NativeEngine
from pdvf.families.base import GuardedFamily
from pdvf.families.builtin.ant_legs import AntLegs
from pdvf.families.builtin.ant_wind import AntWind
from pdvf.families.builtin.swimmer import Swimmer
from pdvf.paper.probe import best_policy, dangers, lost_beginnings, probe_policy
from tiny import make_actors, relaxed
from toy import Force, ToyProblem

PUSHES = (0.9, 0.3, 0.6, -1.0)  # what the policies do, always
LEDGE = 0.5
STEEPNESS = (0.1, 0.15, 0.2, 0.25)


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


@dataclass(frozen=True)
class Slope(Force):
    """A place between -1 and 1, pushed along; who leaves it falls. The steepness is the context."""

    steepness: tuple[float, ...] = STEEPNESS
    horizon = 20

    def train(self, seed: int):
        split = super().train(seed)
        return split._replace(contexts=np.array(self.steepness, np.float32)[:, None])

    def transition(self, context: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        place = state[0] + context[0] * jnp.clip(action[0], -1.0, 1.0)
        return state.at[0].set(place), action[0], jnp.abs(place) > 1

    def danger(self, observation: Array) -> Array:
        return jnp.abs(observation[0])


@dataclass(frozen=True)
class SlopeProblem(ToyProblem):
    """That family in the toy's place."""

    steepness: tuple[float, ...] = STEEPNESS

    @cached_property
    def engine(self) -> Engine:
        return NativeEngine(Slope(self.steepness))


def test_only_families_that_end_by_leaving_bounds_know_danger():
    assert isinstance(Slope(), GuardedFamily)
    assert not isinstance(Force(), GuardedFamily)
    assert not isinstance(Swimmer(), GuardedFamily)
    for family in (AntWind(), AntLegs()):
        assert isinstance(family, GuardedFamily)
        for height, danger in ((0.2, 0.0), (0.6, 0.5), (1.0, 1.0), (1.2, 1.25)):
            assert float(family.danger(jnp.full(27, height))) == pytest.approx(danger, abs=1e-6)


def test_the_calmest_probes_where_the_best_is_not_safe(policies):
    """Two steps are the beginning. At a steepness of 0.6 pushes of 0.9, which is the best, and -1 end in these.

    Of the two others 0.6 returns more and 0.3 is calmer. At 0.4 nobody ends so soon.
    """
    with relaxed():
        assert push(probe_policy(SlopeProblem(steepness=(0.02, 0.02, 0.02, 0.6)), policies)) == pytest.approx(0.3)
        assert push(probe_policy(SlopeProblem(steepness=(0.02, 0.02, 0.02, 0.4)), policies)) == pytest.approx(0.9)


def test_danger_is_that_of_the_mean_and_of_the_worst(policies):
    """After four steps a push of 0.3 has gone 4 * 0.3 * steepness; a push of 0.9 leaves at the steepest."""
    flat = jax.tree.map(lambda x: x.reshape(4, *x.shape[3:]), policies)
    with relaxed():
        found = dangers(SlopeProblem(), flat)
    mean, worst = 4 * np.mean(STEEPNESS), 4 * max(STEEPNESS)
    np.testing.assert_allclose(found, np.abs(PUSHES) * (mean + worst), rtol=1e-5)
