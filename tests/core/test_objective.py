"""Another objective is one class, which a family names: nothing else is touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array
from pdvf.core.objective import Return, objective_of
from pdvf.engines import Engine, NativeEngine
from pdvf.engines.rollout import acting, episode_returns
from pdvf.engines.wrappers import MultiTask
from pdvf.methods import play_agent
from pdvf.methods.ppo_all import Unconditioned
from pdvf.paper.pipeline import best_policy
from pdvf.rl import ppo
from tiny import make_actors, relaxed
from toy import OPTIONS, Force, ToyProblem


class Discounted(NamedTuple):
    """The discounted sum of rewards; of several episodes the worst counts."""

    worth: Array
    factor: Array

    @classmethod
    def start(cls, n: int) -> Discounted:
        return cls(jnp.zeros(n), jnp.ones(n))

    def add(self, reward: Array, alive: Array | bool) -> Discounted:
        return Discounted(self.worth + jnp.where(alive, self.factor * reward, 0.0), 0.5 * self.factor)

    @staticmethod
    def summary(worths: Array, axis: int) -> Array:
        return jnp.min(worths, axis=axis)


@dataclass(frozen=True)
class Lucky(Force):
    """Pushing right earns three times as much as pushing left loses."""

    def transition(self, context: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        state, reward, ended = super().transition(context, state, action)
        return state, jnp.where(reward > 0, 3.0 * reward, reward), ended


@dataclass(frozen=True)
class Careful(Lucky):
    """The same family with the other objective: this line is all there is to say."""

    objective = Discounted


@dataclass(frozen=True)
class Given(ToyProblem):
    family: Force = field(default_factory=Force)

    @cached_property
    def engine(self) -> Engine:
        return NativeEngine(self.family)


def test_every_way_to_play_scores_by_it():
    """A push of 1 at steps 0, 2, 4, 6, 8 earns 3: their sum is 15, discounted by half 3 (1 + 1/4 + ... + 1/256)."""
    worth = 3 * (1 - 0.25**5) / 0.75
    contexts = jnp.ones((2, 1))
    for family, expected in ((Lucky(), 15.0), (Careful(), worth)):
        engine = NativeEngine(family)
        actor = jax.tree.map(lambda x: x[0], holding([1.0]))
        returns = episode_returns(engine, contexts, acting(actor), jax.random.key(0))
        np.testing.assert_allclose(returns, [expected] * 2, rtol=1e-6)
        played = play_agent(engine, Unconditioned(actor), contexts, None, jax.random.key(0))
        np.testing.assert_allclose(played, [expected] * 2, rtol=1e-6)


def test_training_reports_it():
    with relaxed():
        found = []
        for family in (Lucky(), Careful()):
            engine = MultiTask(NativeEngine(family), jnp.ones((1, 1)), jnp.zeros((1, 1, 0)))
            state = ppo.initialise(engine, OPTIONS.ppo, jnp.ones(1), jax.random.key(0))
            state, metrics = ppo.train(engine, OPTIONS.ppo, jnp.ones(1), state, jax.random.key(1), 1)
            found.append((float(metrics.episode_return[0]), np.asarray(state.actor.layers[0].weight)))
    (total, weight), (discounted, same) = found
    assert 0 < abs(discounted) < abs(total)
    np.testing.assert_array_equal(weight, same)  # PPO learns from rewards, one by one


def test_policies_are_chosen_by_it():
    """Pushing always right is best on average; doing nothing is best where the gain is against it."""
    policies = jax.tree.map(lambda x: x.reshape(1, 1, 3, *x.shape[1:]), holding([1.0, 0.0, -0.5]))
    with relaxed():
        pushes = [float(best_policy(Given(family=f), policies).layers[2].bias[0]) for f in (Lucky(), Careful())]
    assert pushes == [1.0, 0.0]


def test_without_a_word_it_is_the_return():
    assert objective_of(Force()) is Return
    assert objective_of(Careful()) is Discounted
    score = Return.start(2).add(jnp.array([1.0, 2.0]), True).add(jnp.array([4.0, 8.0]), jnp.array([True, False]))
    assert score.worth.tolist() == [5.0, 2.0]
    assert Return.summary(jnp.array([[1.0, 3.0], [5.0, 9.0]]), -1).tolist() == [2.0, 7.0]


def holding(actions: list[float]):
    """Policies that always do the same."""
    actors = make_actors(len(actions), Force().observation, Force().action, jax.random.key(0))
    fixed = (jnp.zeros_like(actors.layers[2].weight), jnp.asarray(actions)[:, None])
    return eqx.tree_at(lambda a: (a.layers[2].weight, a.layers[2].bias), actors, fixed)
