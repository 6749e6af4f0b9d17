"""PD-VF-plus by experience: choices worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.config import PlusOptions
from pdvf.methods import Feedback, Transitions, play_everywhere
from pdvf.methods.brace import holding
from pdvf.methods.experienced import (
    WIDTHS,
    Experienced,
    KernelParams,
    fit_hyperparameters,
    left_out,
    posterior_mean,
    spacing,
    train_by_experience,
)
from pdvf.methods.multitask_ppo import Unconditioned
from pdvf.paper.prober import Body
from pdvf.rl.networks import Actor, make_actor_critic
from tiny import make_actors, make_body, relaxed
from toy import OPTIONS, Force, ToyProblem

# Returns of three policies in two training environments: one for each, and one that is fair in both.
RETURNS = jnp.array([[0.0, 1.0], [1.0, 0.0], [0.7, 0.7]])
SEEN = jnp.array([0.0, 1.0])
NOTHING = Feedback(jnp.zeros(1), jnp.zeros(()), jnp.zeros(()))


@pytest.fixture
def transitions() -> Transitions:
    """One probing step of the toy."""
    return Transitions(SEEN[None], jnp.full((1, 1), 0.5), jnp.zeros(1), jnp.array([[0.5, 0.0]]), jnp.ones(1, bool))


def make_agent(transitions: Transitions, width: float) -> Experienced:
    """The probed environment has the z_d of the first training environment; the second is one away."""
    family = Force()
    body = make_body(family.observation, family.action, 3, jax.random.key(0))
    z_d = body.infer(transitions)
    away = jnp.array([1.0, 0.0, 0.0])
    return Experienced(
        make_actors(3, family.observation, family.action, jax.random.key(1)),
        RETURNS,
        jnp.zeros(3),
        jnp.stack([z_d, z_d + away]),
        KernelParams(jnp.array(width), jnp.array(0.01)),
        body,
        PlusOptions(patience=1.5),
    )


def test_near_environments_decide(transitions):
    # Width 0.2: the second environment is alike by e^(-12.5), so the first one's specialist is chosen.
    # Width 100: both are as good as one; means 0.5, 0.5, 0.7, so the third is chosen.
    for width, policy in ((0.2, 1), (100.0, 2)):
        agent = make_agent(transitions, width)
        memory = agent.begin_episode(SEEN, None)
        probing, memory = agent.act(memory, SEEN, NOTHING)
        np.testing.assert_array_equal(probing, agent.body.probe(SEEN))
        memory = agent.adapt(memory, transitions)
        assert int(memory) == policy
        own = jax.tree.map(lambda x, p=policy: x[p], agent.actors)(SEEN)
        np.testing.assert_allclose(agent.act(memory, SEEN, NOTHING)[0], own, rtol=1e-6)


def test_promises_are_cut_by_what_was_too_much_in_them(transitions):
    """The first environment's specialist promises 1; cut by 0.4 it is less than 0.7, which the fair one keeps.

    Where the fair one is the generalist, 1.5 times its 0.7 would be needed; 0.6 is enough against 0.3.
    """
    agent = make_agent(transitions, 0.2)
    wary = replace(agent, options=replace(agent.options, generalist=True))
    poor = replace(wary, returns=RETURNS.at[2].set(0.3))
    for careless, cut, policy in ((agent, 0.2, 1), (agent, 0.4, 2), (wary, 0.2, 2), (poor, 0.4, 1)):
        careful = eqx.tree_at(lambda a: a.excess, careless, jnp.array([cut, cut, 0.0]))
        memory = careful.adapt(careful.begin_episode(SEEN, None), transitions)
        assert int(memory) == policy


class Seen(eqx.Module):
    """Takes the position after the first push for z_d."""

    def encode(self, observation, action, following, valid):
        return following[0, :1] / jnp.abs(action[0, 0])


class Pushing(eqx.Module):
    """A body that probes with one push of the same size everywhere."""

    probe: Any
    dynamics: Seen

    def begin(self, engine, contexts, key, noise=None):
        return Body.begin(self, engine, contexts, key, noise)

    def infer(self, steps):
        return Body.infer(self, steps)


class Toy(eqx.Module):
    """What the method needs of an adapter."""

    body: Pushing
    train_z_d: jax.Array


def pushing(direction: float) -> Actor:
    """A policy that pushes one way, whatever it sees."""
    family = Force()
    actor, _ = make_actor_critic(family.observation, family.action, OPTIONS.ppo.hidden, jax.random.key(0))
    return holding(actor, jnp.full_like(actor.log_std, direction))


def stacked_policies(*directions: float) -> Actor:
    """Finished policies [1, E, 1, ...]."""
    return jax.tree.map(lambda *x: jnp.stack(x)[None, :, None], *(pushing(d) for d in directions))


def test_the_toy_is_mastered_by_policies_that_push_one_way():
    """Two policies that push left and right; z_d tells the sign of the gain after one step."""
    config = replace(OPTIONS, model_seeds=1, plus=PlusOptions(by="experience", episodes=1, width=0.5))
    problem = ToyProblem(config)

    # Two environments' worth of leftward policies, two of rightward ones.
    actors = stacked_policies(-1.0, -1.0, 1.0, 1.0)
    probe = jax.tree.map(lambda x: x[None], pushing(0.5))
    adapter = Toy(Pushing(probe, Seen()), jnp.asarray(problem.contexts)[None])
    with relaxed():
        training = train_by_experience(problem, {"policies": actors, "adapter": adapter}, jax.random.key(2))
        agents = training.finish(training.advance(training.start(), 0)[0])["agent-pd-vf-plus"]
        played = play_everywhere(problem.engine, agents, problem.everywhere, 1, False, jax.random.key(3))["honest"]
    gains = np.asarray(problem.everywhere)[:, 0]
    # The probe pushes by 0.5; four pushes are left, each as strong as can be, in the right direction.
    np.testing.assert_allclose(np.asarray(played)[0, :, 0], 0.5 * gains + 4 * np.abs(gains), rtol=1e-5)


def test_a_generalist_probes_and_others_are_cut_by_what_they_promise_too_much():
    """Gains -1, -0.6, 0.6 and 1; each one's policy is right at home and next to it, and wrong on the other side.

    Gains here are moved up by 0.3, so the generalist that pushes right is better than the one that pushes left.
    """
    plus = PlusOptions(by="experience", episodes=1, width=0.5, generalist=True)
    problem = ToyProblem(replace(OPTIONS, model_seeds=2, plus=plus))
    gains = np.array([[-0.7], [-0.3], [0.9], [1.3]], np.float32)
    vars(problem)["contexts"] = gains
    probe = jax.tree.map(lambda x: jnp.stack([x, x]), pushing(0.5))
    inputs = {
        "policies": stacked_policies(-1.0, -1.0, 1.0, 1.0),
        "adapter": Toy(Pushing(probe, Seen()), jnp.tile(jnp.asarray(gains), (2, 1, 1))),
        "agent-ppo-all": Unconditioned(jax.tree.map(lambda *x: jnp.stack(x), pushing(-0.25), pushing(0.25))),
    }
    with relaxed():
        training = train_by_experience(problem, inputs, jax.random.key(2))
        agents = training.finish(training.advance(training.start(), 0)[0])["agent-pd-vf-plus"]
    returns = np.asarray(agents.returns)
    np.testing.assert_allclose(returns[:, -1], np.tile(5 * 0.25 * gains[:, 0], (2, 1)), rtol=1e-5)
    for s in range(2):
        agent = jax.tree.map(lambda x, s=s: x[s], agents)
        for actor in (jax.tree.map(lambda x: x[-1], agent.actors), agent.body.probe):
            np.testing.assert_allclose(actor(SEEN), [0.25], rtol=1e-6)
        promised, given = left_out(agent.returns[:-1], jnp.arange(4), agent.z_d, agent.kernel)
        cut = max(float(np.mean(promised - given)), 0.0)
        np.testing.assert_allclose(agent.excess, [cut] * 4 + [0.0], rtol=1e-4, atol=1e-5)


def test_what_is_promised_and_given_where_an_environment_is_left_out():
    """Two environments: with one left out the other's policy promises what it gets at home and gives less."""
    returns = jnp.array([[1.0, 0.25], [0.5, 2.0]])
    kernel = KernelParams(jnp.array(1.0), jnp.array(0.1))
    promised, given = left_out(returns, jnp.array([0, 1]), jnp.array([[0.0], [1.0]]), kernel)
    np.testing.assert_allclose(promised, [2.0, 1.0])
    np.testing.assert_allclose(given, [0.5, 0.25])


def test_promises_by_hand():
    """Two environments alike by e^(-1/2); returns 3 and 1, so mean 2 and deviations 1 and -1.

    At the first the kernel is k = [1, q], and [[1 + n, q], [q, 1 + n]] w = k gives (w1 - w2) = (1 - q) / (1 + n - q).
    """
    z_d, returns = jnp.array([[0.0], [1.0]]), jnp.array([[3.0, 1.0]])
    q, n = np.exp(-0.5), 0.1
    kernel = KernelParams(jnp.array(1.0), jnp.array(n))
    np.testing.assert_allclose(posterior_mean(returns, z_d, z_d[0], kernel), [2 + (1 - q) / (1 + n - q)], rtol=1e-5)
    np.testing.assert_allclose(posterior_mean(returns, z_d, jnp.array([50.0]), kernel), [2.0], rtol=1e-6)
    only = posterior_mean(returns, z_d, z_d[0], kernel, jnp.array([False, True]))
    np.testing.assert_allclose(only, [1.0], rtol=1e-6)


@pytest.mark.parametrize(("width", "noise"), [(1.0, 0.01), (4.0, 0.01), (4.0, 1.0)])
def test_the_width_and_the_noise_that_returns_were_drawn_with(width, noise):
    """400 policies in 12 environments in a row; what an environment gives to all of them is of no account."""
    rng = np.random.default_rng(0)
    z_d = 0.1 * np.arange(12.0)[:, None]
    covariance = np.exp(-((z_d - z_d.T) ** 2) / (2 * (0.1 * width) ** 2)) + noise * np.eye(12)
    drawn = 50 * rng.normal(size=(400, 12)) @ np.linalg.cholesky(covariance).T
    for common, scale in ((0.0, 1.0), (1000.0 * rng.normal(size=12), 1.0), (0.0, 1e-10)):
        returns = jnp.asarray(scale * (drawn + common), jnp.float32)
        kernel = fit_hyperparameters(returns, jnp.asarray(z_d, jnp.float32), WIDTHS)
        np.testing.assert_allclose(kernel.width, 0.1 * width, rtol=1e-5)
        np.testing.assert_allclose(kernel.noise, noise, rtol=1e-5)
    np.testing.assert_allclose(
        fit_hyperparameters(returns, jnp.asarray(z_d, jnp.float32), (2.0,)).width, 0.2, rtol=1e-5
    )


def test_of_what_is_as_likely_the_narrowest():
    """Environments that are all as far from each other say nothing about how far returns carry."""
    returns = jnp.asarray(np.random.default_rng(0).normal(size=(20, 3)), jnp.float32)
    kernel = fit_hyperparameters(returns, jnp.eye(3), WIDTHS)
    np.testing.assert_allclose([kernel.width, kernel.noise], [WIDTHS[0] * np.sqrt(2), 0.01], rtol=1e-6)


def test_policies_that_are_all_alike_do_no_harm():
    kernel = fit_hyperparameters(jnp.ones((3, 4)), jnp.zeros((4, 2)), WIDTHS)
    assert np.all(np.isfinite(posterior_mean(jnp.ones((3, 4)), jnp.zeros((4, 2)), jnp.zeros(2), kernel)))


def test_spacing_by_hand():
    np.testing.assert_allclose(spacing(jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 3.0]])), (1 + 1 + 3) / 3)
