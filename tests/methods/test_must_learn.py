"""Every method learns on a toy family where it is known what can be earned with and without the hidden context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from pdvf.experiment.adaptation import measure
from pdvf.methods import METHODS, agent_artefact, play_everywhere
from pdvf.paper.problem import transfer
from pdvf.reports.adaptation import summarise
from tiny import make_actors, make_body, relaxed
from toy import BLIND, INFORMED, Force, ToyProblem

Returns = Callable[..., np.ndarray]
HALF = (BLIND + INFORMED) / 2


@pytest.fixture(scope="module")
def artefacts() -> dict[str, Any]:
    """What methods were trained so far, and what those need that probe.

    Policies push at random; the two models' encoders are random: different pushes have different embeddings all the
    same.
    """
    problem = ToyProblem()
    family, (environments, _) = problem.engine.family, problem.contexts.shape
    with relaxed():
        actors = make_actors(environments, family.observation, family.action, jax.random.key(0))
        made = jax.vmap(lambda key: make_body(family.observation, family.action, 4, key))
        body = jax.jit(made)(jax.random.split(jax.random.key(1), 2))
    policies = jax.tree.map(lambda x: x[None, :, None], actors)  # [1, E, 1, ...]
    return {"policies": policies, "dynamics": body.dynamics, "policy": SimpleNamespace(decoder=body.decoder)}


@pytest.fixture
def earned(artefacts) -> Iterator[Returns]:
    """Mean returns [S] of a method over the test environments, trained once for all tests."""

    def train(name: str) -> None:
        method, problem = METHODS[name], ToyProblem()
        for needed in method.needs:
            if needed not in artefacts:
                train(needed.removeprefix("agent-"))
        training = method.train(problem, artefacts, jax.random.key(3))
        state = jax.jit(training.start)()
        for stage in range(training.stages):
            state, _ = training.advance(state, stage)
        artefacts.update(training.finish(state))

    def earned(name: str) -> np.ndarray:
        problem, agent = ToyProblem(), agent_artefact(name)
        if agent not in artefacts:
            train(name)
        privileged = METHODS[name].privileged
        play = jax.jit(lambda agents: play_everywhere(problem.engine, agents, problem.everywhere, 1, privileged, key))
        key = jax.random.key(0)
        returns = np.asarray(play(artefacts[agent])["honest"])
        return returns[:, len(problem.contexts) :].mean(axis=(1, 2))

    with relaxed():
        yield earned


def above(values: Sequence[float] | np.ndarray, bound: float) -> bool:
    """Whether every seed is above a bound."""
    return bool(np.all(np.asarray(values) > bound))


def test_without_memory_nothing_can_be_earned(earned):
    """What a policy earns is the sum of gain * push(0); it pushes alike under gain and -gain, so the mean is 0."""
    np.testing.assert_allclose(earned("ppo-all"), BLIND, atol=1e-5)
    family = Force()
    actors = make_actors(32, family.observation, family.action, jax.random.key(4))
    returns = np.asarray(transfer(ToyProblem().engine, family.test(0).contexts, actors, jax.random.key(5)))
    assert np.abs(returns).max() > HALF  # they do push
    np.testing.assert_allclose(returns.mean(axis=1), BLIND, atol=1e-5)


def test_whether_it_adapts_is_told(earned, artefacts):
    """A belief from another environment costs what the belief is worth, and more."""
    earned("pd-vf-plus")
    problem, method = ToyProblem(), METHODS["pd-vf-plus"]
    made, _ = measure(problem, method, artefacts["agent-pd-vf-plus"]).advance((), 0)
    arrays = {name: np.asarray(x) for name, x in made["adaptation-pd-vf-plus"].items()}
    found = summarise(method.name, Force.context_names, arrays)
    assert found.adapts
    assert found.loss.value > HALF
    assert found.choice > 0.5
    assert found.known["gain"] > 0.95
    assert found.unseen["gain"] > 0.95


@pytest.mark.slow
def test_knowing_the_context_from_the_start(earned):
    # Five pushes of 0.8; the first of them is made by those alone who are told.
    assert above(earned("oracle"), 0.9 * (INFORMED + 0.8))


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("rl2", "maml")), "pd-vf-plus"]
)
def test_finding_out_within_the_episode(earned, name):
    returns = earned(name)
    assert above(returns, 0.75 * INFORMED)
    assert returns.max() <= INFORMED + 1e-4  # the first push is a guess, whoever makes it
    assert above(returns - earned("ppo-all"), HALF)


@pytest.mark.slow
def test_policy_conditioned_on_the_embedding_beats_one_for_all(earned):
    returns = earned("ppo-dyn")
    assert above(returns, 0.75 * INFORMED)
    assert above(returns - earned("ppo-all"), HALF)


@pytest.mark.slow
def test_one_policy_a_cluster(earned, artefacts):
    assert above(earned("kmeans"), 0.75 * INFORMED)
    # Two clusters: pushes to the left and to the right look different whatever the encoder.
    centres = np.asarray(artefacts["agent-kmeans"].centres)
    assert centres.shape == (2, 2, 4)
    assert np.abs(centres[:, 0] - centres[:, 1]).max() > 1e-3


@pytest.mark.slow
def test_context_estimated_online(earned):
    assert above(earned("rma"), 0.75 * INFORMED)
