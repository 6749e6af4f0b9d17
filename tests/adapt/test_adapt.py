"""The adaptive method where the effect is linear in what is hidden: codes, effect, completion, belief, steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.adapt import learning
from pdvf.adapt.belief import FAMILIAR, SURE, Belief, along, inverse, out_of_distribution
from pdvf.adapt.model import DynamicsModel, Rows, enclosing_ellipsoid, make_model
from pdvf.adapt.tasks import BeliefTasks
from pdvf.config import ConfigError, PlusOptions
from pdvf.core.arrays import Array, Box
from pdvf.engines import NativeEngine
from pdvf.engines.base import settable
from pdvf.engines.completion import Completed
from pdvf.families.base import GuardedFamily, Split
from pdvf.methods.adaptive import AdaptiveTraining
from pdvf.methods.complete import COMPLETION, Completion, completed, learn_completion, new_codes
from pdvf.paper.pipeline import Problem
from tiny import TINY, make_actors, relaxed
from toy import OPTIONS, CountingProblem, ToyProblem

ANGLES = 2 * np.pi * np.arange(9) / 9
WINDS = np.stack([np.cos(ANGLES), 0.5 * np.sin(ANGLES)], axis=1).astype(np.float32)
LEFT_OUT = np.array([0.6, -0.35], np.float32)
RANK = 2


@dataclass(frozen=True)
class Drift:
    """A place in the plane that actions move, and that a hidden wind pushes and shears.

    The next place is linear in place and action, and so is what the wind adds.
    """

    name = "drift"
    context_names = ("x", "y")
    horizon = 16
    probe_steps = 2
    observation = Box(-2 * np.ones(2, np.float32), 2 * np.ones(2, np.float32))
    action = Box(-np.ones(2, np.float32), np.ones(2, np.float32))

    def train(self, seed: int) -> Split:
        return Split(tuple(range(1, 10)), WINDS)

    def test(self, seed: int) -> Split:
        return Split((10,), LEFT_OUT[None])

    def initial_state(self, key: Array, context: Array) -> Array:
        return jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)

    def observe(self, state: Array) -> Array:
        return state

    def effect(self, state: Array, action: Array) -> Array:
        """Of the wind on the next place [2, 2]."""
        return 0.1 * jnp.eye(2) + 0.05 * jnp.diag(action)

    def transition(self, context: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        action = jnp.clip(action, -1.0, 1.0)
        after = 0.8 * state + 0.2 * action + self.effect(state, action) @ context
        return after, self.reward(state, after, action), self.terminated(state, after, action)

    def reward(self, before: Array, after: Array, action: Array) -> Array:
        return -jnp.sum(after**2)

    def terminated(self, before: Array, after: Array, action: Array) -> Array:
        return jnp.zeros((), bool)


@dataclass(frozen=True)
class NoisyDrift(Drift):
    """Gusts, which are the same in every wind and which nobody can foresee: they hang on late digits of the place."""

    def transition(self, context: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        after, _, _ = super().transition(context, state, action)
        after = after + 0.1 * jnp.sin(1e4 * state)
        return after, self.reward(state, after, action), self.terminated(state, after, action)


@pytest.fixture(scope="module", autouse=True)
def checks():
    with relaxed():
        yield


def learned(family: Drift, updates: int) -> tuple[DynamicsModel, Rows, learning.Quality]:
    """A model of a family from steps of a random policy in the training environments."""
    engine = NativeEngine(family)
    assert settable(engine)
    model = make_model(2, 2, 2, len(WINDS), 3, 32, jax.random.key(0))
    tasks = BeliefTasks(engine, jnp.asarray(WINDS), model, jnp.zeros(()))
    actor = jax.tree.map(lambda x: x[0], make_actors(1, tasks.family.observation, family.action, jax.random.key(1)))
    rows = jax.jit(lambda key: learning.gather(tasks, actor, 512, key))(jax.random.key(2))
    fit = jax.jit(lambda key: learning.fit(model, rows, True, updates, 256, 1e-2, key))
    model, _ = fit(jax.random.key(3))
    seen = jax.tree.map(lambda x: x[None], learning.held_out_effects(model, rows, True))
    models, quality = learning.renormalise(jax.tree.map(lambda x: x[None], model), seen)
    model, _ = learning.calibrate(jax.tree.map(lambda x: x[0], models), rows)
    return model, rows, jax.tree.map(lambda x: x[0], quality)


@pytest.fixture(scope="module")
def exact() -> tuple[DynamicsModel, Rows, learning.Quality]:
    return learned(Drift(), 4000)


def from_winds(model: DynamicsModel) -> np.ndarray:
    """The affine map [3, K] from a wind and 1 to a code, by least squares."""
    design = np.concatenate([WINDS, np.ones((len(WINDS), 1))], axis=1)
    return np.linalg.lstsq(design, np.asarray(model.codes), rcond=None)[0]


def test_codes_are_linear_in_the_hidden_context(exact):
    model, _, quality = exact
    codes = np.asarray(model.codes)
    assert int(quality.rank) == RANK  # of the 3 numbers it may have
    assert np.linalg.norm(codes, axis=1).max() <= 1 + 1e-5
    predicted = np.concatenate([WINDS, np.ones((len(WINDS), 1))], axis=1) @ from_winds(model)
    used = np.any(codes != 0, axis=0)
    unexplained = np.sum((codes - predicted)[:, used] ** 2) / np.sum((codes - codes.mean(0))[:, used] ** 2)
    assert 1 - unexplained > 0.999


def test_the_effect_is_the_true_one(exact):
    """In units of winds: the learned effect of a code, times the code of a wind."""
    model, _, quality = exact
    rng = np.random.default_rng(0)
    places, actions = (jnp.asarray(rng.uniform(-0.7, 0.7, (200, 2)), jnp.float32) for _ in range(2))
    found = jax.vmap(model.effect)(places, actions) @ from_winds(model)[:2].T
    true = jax.vmap(Drift().effect)(places, actions)
    assert np.sqrt(np.mean((found - true) ** 2) / np.mean(true**2)) < 0.01
    assert float(quality.relative_error) < 0.01


def test_completion_reproduces_an_environment_that_was_left_out(exact):
    """Up to a thousandth of what moves in a step."""
    model, _, _ = exact
    engine, n = NativeEngine(Drift()), 200
    code = np.append(LEFT_OUT, 1.0) @ from_winds(model)
    nearest = int(np.argmin(np.sum((np.asarray(model.codes) - code) ** 2, axis=-1)))
    offset = code - np.asarray(model.codes)[nearest]
    assert np.linalg.norm(offset) > 0.1
    rng = np.random.default_rng(1)
    places, actions = (jnp.asarray(rng.uniform(-0.7, 0.7, (n, 2)), jnp.float32) for _ in range(2))
    contexts = jnp.tile(jnp.asarray(np.concatenate([WINDS[nearest], offset]), jnp.float32), (n, 1))
    made, outcome = Completed(engine, model.effect, model.code_size).step(contexts, places, actions)
    true, expected = engine.step(jnp.tile(LEFT_OUT, (n, 1)), places, actions)
    moved = np.sqrt(np.mean(np.sum((true - places) ** 2, axis=-1)))
    assert np.sqrt(np.mean(np.sum((made - true) ** 2, axis=-1))) < 1e-3 * moved
    np.testing.assert_allclose(outcome.reward, -np.sum(np.asarray(made) ** 2, axis=-1), rtol=1e-5)
    uncorrected, _ = engine.step(contexts[:, :2], places, actions)
    assert np.sqrt(np.mean(np.sum((uncorrected - true) ** 2, axis=-1))) > 0.05 * moved  # it had something to do
    assert outcome.terminated.shape == expected.terminated.shape


def test_without_an_offset_it_is_the_engine_bit_by_bit(exact):
    model, _, _ = exact
    engine = NativeEngine(Drift())
    completed = Completed(engine, model.effect, model.code_size)
    winds = jnp.asarray(WINDS)
    contexts = jnp.concatenate([winds, jnp.zeros((len(WINDS), model.code_size))], axis=1)
    keys = jax.random.split(jax.random.key(0), len(WINDS))
    states, observation = engine.reset(keys, winds)
    same, seen = completed.reset(keys, contexts)
    np.testing.assert_array_equal(seen, observation)
    actions = jax.random.uniform(jax.random.key(1), (len(WINDS), 2), minval=-1.0)
    expected, found = engine.step(winds, states, actions), completed.step(contexts, same, actions)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    moved, _ = completed.step(contexts.at[:, -model.code_size].add(0.1), same, actions)
    assert not np.any(np.all(moved == expected[0], axis=-1))


def test_the_belief_converges_to_the_true_code(exact):
    model, rows, _ = exact
    seen = learning.held_out(rows)
    beliefs = jax.vmap(along, in_axes=(None, 1, 1, 1, 1))(
        model, seen.observation, seen.action, seen.next_observation, seen.first
    )
    errors = jax.vmap(jax.vmap(lambda b: b.mean))(beliefs) - model.codes[seen.environment.T]
    first, last = (np.sqrt(np.mean(np.sum(np.asarray(errors[:, t]) ** 2, axis=-1))) for t in (0, -1))
    assert last < 0.02
    assert last <= first
    spread = np.asarray(jax.vmap(jax.vmap(lambda b: jnp.trace(b.covariance[:, :])))(beliefs))
    assert np.all(np.diff(spread, axis=1) <= 1e-6)


@pytest.fixture(scope="module")
def noisy() -> DynamicsModel:
    return learned(NoisyDrift(), 2000)[0]


@jax.jit
def beliefs_in(model: DynamicsModel, winds: Array) -> Belief:
    """After each step of episodes with random actions, [n, T, ...]."""
    engine, n = NativeEngine(NoisyDrift()), winds.shape[0]

    def step(carry, key):
        states, observation = carry
        actions = jax.random.uniform(key, (n, 2), minval=-1.0, maxval=1.0)
        after, outcome = engine.step(winds, states, actions)
        return (after, outcome.observation), (observation, actions, outcome.observation)

    begin_key, play_key = jax.random.split(jax.random.key(7))
    begin = engine.reset(jax.random.split(begin_key, n), winds)
    _, (observation, action, following) = jax.lax.scan(step, begin, jax.random.split(play_key, Drift.horizon))
    first = jnp.zeros((Drift.horizon, n), bool).at[0].set(True)
    return jax.vmap(along, in_axes=(None, 1, 1, 1, 1))(model, observation, action, following, first)


def unlike_training(model: DynamicsModel, beliefs: Belief) -> np.ndarray:
    """After each step [n, T]."""
    return np.asarray(jax.vmap(jax.vmap(partial(out_of_distribution, model)))(beliefs))


def test_its_covariance_is_calibrated(noisy):
    """Noise that steps do not explain: the squared error over the covariance is about the rank, throughout."""
    model = noisy
    beliefs = beliefs_in(model, jnp.asarray(WINDS)[jnp.arange(1024) % len(WINDS)])
    apart = jax.vmap(jax.vmap(lambda b: b.mean))(beliefs) - model.codes[jnp.arange(1024) % len(WINDS)][:, None]
    distance = np.asarray(jnp.einsum("ntk,ntkl,ntl->nt", apart, beliefs.precision, apart)).mean(axis=0)
    assert np.all(distance / RANK < 2.0)
    assert np.all(distance / RANK > 0.5)
    assert float(jnp.mean(beliefs.novelty[:, -1])) == pytest.approx(1.0, abs=0.7)


def test_winds_far_beyond_those_of_training_are_told_apart(noisy):
    """Also where the belief follows them, since the effect of the wind is linear; few within are mistaken for them."""
    within = 0.8 * jnp.asarray(WINDS)[jnp.arange(1024) % len(WINDS)]
    near, far = (unlike_training(noisy, beliefs_in(noisy, winds)) for winds in (within, 3 * within))
    assert np.all(np.mean(near > 1, axis=0) < 0.05)  # whenever the episode ends
    assert np.mean(far[:, -1] > 1) > 0.95
    assert np.mean(far[:, -1, None] > near[:, -1]) > 0.99  # the area under the ROC curve


def test_an_episode_that_gets_stuck_stays_unlike_training(noisy):
    """A code far outside shows in some steps; in those that follow nothing moves, and nothing surprises."""
    rng = np.random.default_rng(2)
    moving, stuck = 30, 170
    place, action = (jnp.asarray(rng.uniform(-0.7, 0.7, (moving + stuck, 2)), jnp.float32) for _ in range(2))
    predicted = jax.vmap(noisy.predict)(place, action)

    def followed(code: Array) -> Belief:
        change = predicted.mean + predicted.sensitivity @ code
        begun = along(noisy, place, action, place + noisy.change.unscale(change), jnp.arange(len(place)) == 0)
        belief = jax.tree.map(lambda x: x[moving - 1], begun)
        return belief._replace(steps=belief.steps + stuck)

    outside, inside = (followed(far * noisy.codes[0]) for far in (2.0, 0.9))
    assert outside.novelty < noisy.novelty_threshold  # the code explains it, and a mean over steps would forget
    assert out_of_distribution(noisy, outside) > 1.3
    assert out_of_distribution(noisy, inside) < 1.0


def test_what_no_code_explains_is_unlike_training(noisy):
    place = action = jnp.zeros((50, 2))
    predicted = jax.vmap(noisy.predict)(place, action)
    thrown = 5 * jnp.sqrt(predicted.variance) * (-1.0) ** jnp.arange(50)[:, None]
    found = []
    for change in (predicted.mean, predicted.mean + thrown):
        after = place + noisy.change.unscale(change)
        belief = jax.tree.map(lambda x: x[-1], along(noisy, place, action, after, jnp.arange(50) == 0))
        assert belief.reach < FAMILIAR
        found.append(float(out_of_distribution(noisy, belief)))
    assert found[0] < 1.0 < found[1]


def test_reach_is_what_the_belief_is_sure_of():
    """By hand: the mean is (1.2, 1.6), its norm 2, and the standard deviation along it 0.5."""
    covariance = jnp.diag(jnp.array([0.25, 0.25]))
    belief = Belief(jnp.linalg.inv(covariance), jnp.array([4.8, 6.4]), jnp.zeros(()), jnp.zeros(()))
    assert float(belief.reach) == pytest.approx(2.0 - SURE * 0.5, rel=1e-5)
    assert float(Belief.prior(2).reach) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("size", [2, 8, 64])
def test_few_episodes_say_what_another_one_goes_beyond(size):
    """One in a hundred, over many sets of so many episodes; the rest of the row is not chosen."""
    key = jax.random.key(size)
    novelty = 0.3 * jnp.exp(0.7 * jax.random.normal(key, (20_000, size + 1)))
    chosen = jnp.arange(size + 1) < size
    limits = jax.vmap(learning.prediction_limit, in_axes=(0, None))(novelty, chosen)
    assert np.mean(novelty[:, -1] > limits) == pytest.approx(learning.FALSE_ALARMS, abs=0.003)


def test_one_episode_says_nothing_of_others():
    assert learning.prediction_limit(jnp.array([0.3, 0.5]), jnp.array([True, False])) == jnp.inf


@pytest.mark.parametrize("size", [1, 2, 5])
def test_inverse_of_a_small_matrix(size):
    root = np.random.default_rng(size).normal(size=(size, size)).astype(np.float32)
    matrix = root @ root.T + np.eye(size, dtype=np.float32)
    np.testing.assert_allclose(inverse(jnp.asarray(matrix)), np.linalg.inv(matrix), rtol=1e-4, atol=1e-5)


def test_the_prior_knows_nothing():
    prior = Belief.prior(3)
    np.testing.assert_allclose(prior.features(), [0, 0, 0, 1, 1, 1], atol=1e-6)
    assert float(prior.novelty) == 0.0


def test_enclosing_ellipsoid():
    """Of points on a turned and shifted ellipse it is that ellipse; of any points none lies outside."""
    turn, centre = np.array([[0.8, -0.6], [0.6, 0.8]]), np.array([3.0, -1.0])
    circle = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
    found, shape = enclosing_ellipsoid(circle * [2.0, 0.5] @ turn.T + centre)
    np.testing.assert_allclose(found, centre, atol=1e-2)
    np.testing.assert_allclose(shape, turn @ np.diag([0.5, 2.0]) @ turn.T, atol=2e-2)
    points = np.random.default_rng(0).normal(size=(50, 3))
    centre, shape = enclosing_ellipsoid(points)
    distance = np.linalg.norm((points - centre) @ shape, axis=1)
    assert distance.max() == pytest.approx(1.0)
    assert np.sum(distance > 0.99) >= 4  # as many touch it as fix it


def test_steps_are_counted_exactly():
    """Those of two policies, and those that a model is learned from, each made twice."""
    config = replace(OPTIONS, plus=PlusOptions(code=2, width=8, rows=80, updates=20, batch=8))
    problem = CountingProblem(config)
    count = problem.count
    options = replace(TINY.ppo, steps=2 * 2 * 8 * 3)
    training = AdaptiveTraining(problem, jax.random.key(0), options)
    state = training.start()
    for stage in range(training.stages):
        count.steps = 0
        state, said = training.advance(state, stage)
        jax.block_until_ready(state)
        # Two seeds, 3 updates of 2 copies of 8 steps; 8 streams of 9 steps in two environments.
        assert count.steps == float(said["steps"]) == 2 * (3 * 2 * 8 + 2 * 8 * 9)
    agent = training.finish(state)["agent-pd-vf-plus"]
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(eqx.filter(agent, eqx.is_array)))


# Completion for other methods


@pytest.fixture
def whole(exact) -> Problem:
    """A problem of the drift with three synthesised environments."""
    model, _, _ = exact
    codes = new_codes(model.codes[:6], 3, jax.random.key(0))
    nearest = np.argmin(np.sum((np.asarray(codes)[:, None] - np.asarray(model.codes[:6])) ** 2, axis=-1), axis=1)
    made = jnp.concatenate([jnp.asarray(WINDS)[nearest], codes - model.codes[nearest]], axis=1)
    problem = Problem(OPTIONS)
    problem.__dict__["engine"] = NativeEngine(Drift())
    assert problem.contexts.shape == (9, 2)  # asked before, and not again below
    return completed(problem, Completion(model, made))


def test_a_completed_problem_has_more_contexts(whole):
    family = whole.engine.family
    assert whole.contexts.shape == (12, 2 + 3)
    assert family.train(0).numbers == (*range(1, 10), 11, 12, 13)
    assert family.test(0).numbers == (10,)
    np.testing.assert_array_equal(whole.contexts[:9], np.pad(WINDS, ((0, 0), (0, 3))))
    np.testing.assert_array_equal(whole.everywhere[12:], [[*LEFT_OUT, 0, 0, 0]])
    assert len(family.context_names) == 5
    assert settable(whole.engine)
    assert not isinstance(family, GuardedFamily)


def test_synthesised_environments_are_those_of_their_codes(whole, exact):
    """The wind of a code is known here: a step in the synthesised environment is one in that wind."""
    model, _, _ = exact
    places, actions = (jnp.asarray(x, jnp.float32) for x in np.random.default_rng(2).uniform(-0.7, 0.7, (2, 3, 2)))
    made, _ = whole.engine.step(jnp.asarray(whole.contexts[9:]), places, actions)
    back = np.linalg.lstsq(from_winds(model)[:2].T, np.asarray(whole.contexts[9:, 2:]).T, rcond=None)[0].T
    true, _ = NativeEngine(Drift()).step(jnp.asarray(whole.contexts[9:, :2] + back), places, actions)
    np.testing.assert_allclose(made, true, atol=2e-3)


def test_new_codes_fill_the_gap_first(exact):
    """Six of nine winds are on one side: the farthest of what may be drawn is on the other."""
    codes = np.asarray(exact[0].codes)
    left_out = codes[6:].mean(axis=0)
    for code in np.asarray(new_codes(jnp.asarray(codes[:6]), 2, jax.random.key(1))):
        assert code @ left_out > 0.5 * np.linalg.norm(code) * np.linalg.norm(left_out)


def test_no_completion_without_trust_or_states(monkeypatch):
    config = replace(OPTIONS, complete=2, plus=PlusOptions(code=2, width=8, rows=80, updates=20, batch=8))
    completing = learn_completion(ToyProblem(config))
    state = completing.start()
    with pytest.raises(ConfigError, match="complete is 2, expected 0 for force: half of the predicted effects are"):
        completing.finish(state)
    assert completing.finish(state._replace(share=state.share + 0.1))[COMPLETION].made.shape == (2, 1 + 2)
    monkeypatch.setattr("pdvf.paper.problem.settable", lambda engine: False)
    with pytest.raises(ConfigError, match="the simulator of spaceship cannot be put into any state"):
        _ = Problem(replace(TINY, complete=1)).engine
