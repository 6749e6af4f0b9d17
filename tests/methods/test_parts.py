"""Parts of methods against second implementations and by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.engines import NativeEngine
from pdvf.engines.wrappers import MultiTask, TransitionHistory, row_size
from pdvf.methods import METHODS, Transitions, play_everywhere
from pdvf.methods.kmeans import cluster
from pdvf.methods.maml import MetaActor, meta_networks
from pdvf.methods.oracle import context_features, scaled_features
from pdvf.rl.recurrent_networks import RecurrentNetwork, layers
from tiny import relaxed
from toy import Force, ToyProblem


@pytest.fixture
def meta_actor() -> MetaActor:
    """A policy for the toy's two numbers, with a critic and last layers that are not 0."""
    engine = TransitionHistory(MultiTask(NativeEngine(Force()), jnp.ones((1, 1)), jnp.zeros((1, 1, 0))))
    make = meta_networks(Force().observation, 0.9, 0.3)
    actor, _ = make(engine.family.observation, Force().action, 5, jax.random.key(0))
    leaves, structure = jax.tree.flatten(actor)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return jax.tree.unflatten(
        structure, [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    )


def test_step_of_maml_is_the_gradient_of_its_loss(meta_actor):
    """The low-rank step against `jax.grad` of the loss as it is written, with weights that are really moved."""
    keys = jax.random.split(jax.random.key(2), 5)
    transitions = Transitions(
        jax.random.normal(keys[0], (3, 2)),
        jax.random.normal(keys[1], (3, 1)),
        jax.random.normal(keys[2], (3,)),
        jax.random.normal(keys[3], (3, 2)),
        jnp.array([True, True, False]),
    )
    observation = jax.random.normal(keys[4], (2,))

    def forward(layers, x):
        x = (x - meta_actor.observation.centre[:2]) / meta_actor.observation.width[:2]
        for layer in layers[:-1]:
            x = jnp.tanh(layer.weight @ x + layer.bias)
        return layers[-1].weight @ x + layers[-1].bias

    def loss(layers):
        total = jnp.zeros(())
        for i in (0, 1):  # the third transition is not valid
            value = forward(meta_actor.value_layers, transitions.observation[i])[0]
            following = forward(meta_actor.value_layers, transitions.next_observation[i])[0]
            advantage = transitions.reward[i] + 0.9 * following - value
            log_density = -0.5 * jnp.sum((transitions.action[i] - forward(layers, transitions.observation[i])) ** 2)
            total = total - advantage * log_density / 2.0
        return total

    gradient = jax.grad(loss)(meta_actor.layers)
    moved = [
        (layer.weight - size[:, None] * g.weight, layer.bias - size * g.bias)
        for layer, size, g in zip(meta_actor.layers, meta_actor.step_sizes, gradient, strict=True)
    ]
    x = (observation - meta_actor.observation.centre[:2]) / meta_actor.observation.width[:2]
    for weight, bias in moved[:-1]:
        x = jnp.tanh(weight @ x + bias)
    expected = moved[-1][0] @ x + moved[-1][1]
    found = meta_actor.mean(meta_actor.gradient(transitions), jnp.ones((), bool), observation)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    before = forward(meta_actor.layers, observation)
    assert np.abs(np.asarray(found - before)).max() > 1e-3
    # Until then it explores with an offset of half the largest action.
    probing = meta_actor.mean(meta_actor.gradient(transitions), jnp.zeros((), bool), observation)
    np.testing.assert_allclose(probing, before + 0.5, rtol=1e-5)


def test_recurrent_network_step_by_step_and_in_one_go():
    family = Force()
    network = RecurrentNetwork(*layers(family.observation, family.action, 4, 3, 1.0, jax.random.key(0)))
    seen = jax.random.normal(jax.random.key(1), (6, 5)).at[:, -1].set(jnp.array([1.0, 0, 0, 1, 0, 0]))
    hidden, outputs = jnp.full(4, 7.0), []
    for row in seen:
        output, hidden = network.step(hidden, row)
        outputs.append(output)
    found, states = network.unroll(jnp.full(4, 7.0), seen)
    np.testing.assert_allclose(found, jnp.stack(outputs), rtol=1e-5)
    np.testing.assert_allclose(states[-1], hidden, rtol=1e-5)
    # A first step forgets what came before: the same from any hidden state.
    np.testing.assert_allclose(network.unroll(jnp.full(4, -3.0), seen)[0], found, rtol=1e-5)
    np.testing.assert_allclose(network.unroll(jnp.zeros(4), seen[3:])[0], found[3:], rtol=1e-5)
    with_memory, _ = network.unroll(jnp.full(4, 7.0), seen.at[0, -1].set(0.0))
    assert np.abs(np.asarray(with_memory[0] - found[0])).max() > 1e-3


def test_tasks_are_drawn_by_their_weights_and_show_their_feature():
    contexts = jnp.array([[-1.0], [0.5], [1.0]])
    features = jnp.array([[[0.1], [0.2]], [[0.3], [0.4]], [[0.5], [0.6]]])
    tasks = MultiTask(NativeEngine(Force()), contexts, features)
    assert tasks.family.observation.size == 3
    weights = jnp.tile(jnp.array([0.25, 0.0, 0.75]), (400, 1))
    state, observation = tasks.reset(jax.random.split(jax.random.key(0), 400), weights)
    counts = {value: int(np.sum(np.isclose(state.context[:, 0], value))) for value in (-1.0, 0.5, 1.0)}
    assert counts[0.5] == 0
    assert 260 < counts[1.0] < 340  # 300 expected, standard deviation 8.7
    np.testing.assert_array_equal(observation[:, :2], np.tile([0.0, 1.0], (400, 1)))
    own = np.where(np.asarray(state.context[:, 0]) < 0, 0.1, 0.5)
    assert set(np.round(np.asarray(observation[:, 2]) - own, 3).tolist()) == {0.0, 0.1}
    # A push of 1 moves by the gain of the environment that was drawn.
    _, outcome = tasks.step(weights, state, jnp.ones((400, 1)))
    np.testing.assert_allclose(outcome.observation[:, 0], state.context[:, 0])
    np.testing.assert_allclose(outcome.observation[:, 2], observation[:, 2])


def test_first_transitions_are_recalled():
    engine = TransitionHistory(NativeEngine(Force()))
    keys, contexts = jax.random.split(jax.random.key(0), 2), jnp.array([[1.0], [-1.0]])
    state, wide = engine.reset(keys, contexts)
    assert wide.shape == (2, 2 + row_size(Force()))
    np.testing.assert_array_equal(wide[:, 2:], 0.0)
    state, outcome = engine.step(contexts, state, jnp.full((2, 1), 0.5))
    # s = (0, 1), a = 0.5, r = s'_0 = gain / 2, s' = (gain / 2, 0), made.
    expected = [[0.0, 1, 0.5, 0.5, 0.5, 0, 1], [0.0, 1, 0.5, -0.5, -0.5, 0, 1]]
    np.testing.assert_allclose(outcome.observation[:, 2:], expected)
    _, outcome = engine.step(contexts, state, jnp.full((2, 1), 0.9))
    np.testing.assert_allclose(outcome.observation[:, 2:], expected)


def test_clusters_by_hand():
    points = jnp.array([[[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0], [4.9, 5.0]]])
    centres, members = cluster(points, 2)
    near = int(np.argmin(np.asarray(centres)[0].sum(axis=1)))
    np.testing.assert_allclose(centres[0, near], [0.05, 0.0], atol=1e-6)
    np.testing.assert_allclose(centres[0, 1 - near], [5.0, 5.0], atol=1e-6)
    np.testing.assert_array_equal(members[0, near], [1, 1, 0, 0, 0])
    np.testing.assert_array_equal(members[0, 1 - near], [0, 0, 1, 1, 1])


def test_angles_are_told_as_places_on_a_circle():
    found = context_features(("angle", "length"), jnp.array([jnp.pi / 2, 3.0]))
    np.testing.assert_allclose(found, [0.0, 1.0, 3.0], atol=1e-6)
    features, centre, width = scaled_features(Force(), jnp.array([[1.0], [2.0], [6.0]]))
    np.testing.assert_allclose(features[:, 0], [-2 / 3, -1 / 3, 1.0])
    np.testing.assert_allclose([centre[0], width[0]], [3.0, 3.0])


def test_agents_that_are_not_told_get_nothing():
    """A method that looks at the hidden environment without being told fails at once."""
    problem = ToyProblem()
    with relaxed():
        training = METHODS["oracle"].train(problem, {}, jax.random.key(0))
        agents = training.finish(jax.jit(training.start)())["agent-oracle"]
        with pytest.raises(AssertionError):
            play_everywhere(problem.engine, agents, problem.everywhere, 1, False, jax.random.key(1))
