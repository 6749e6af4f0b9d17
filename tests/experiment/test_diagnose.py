"""Diagnosis of a trained PD-VF: what is measured and what is made of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.experiment.diagnosis import (
    SAMPLE,
    Measured,
    as_data,
    bottleneck,
    effort,
    findings,
    measure,
    table,
)
from pdvf.families.builtin.spaceship import Spaceship, SpaceshipOptions
from pdvf.paper.adapter import Adapter
from pdvf.paper.aggregate import ReturnScale, make_members
from pdvf.paper.problem import Problem
from pdvf.reports import diagnosis
from pdvf.reports.style import png
from tiny import TINY, make_actors, make_body, relaxed

ANGLES = np.linspace(0.0, 5.0, 9)[:, None].astype(np.float32)


def made_up(**returns: float) -> Measured:
    levels = {"own": 1.0, "hindsight": 1.0, "decoded": 1.0, "known": 1.0, "ranked": 1.0, "optimal": 1.0, "adapted": 1.0}
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {name: np.full(9, level) for name, level in (levels | returns).items()}
    sampled = rng.normal(size=(20, 9))
    return Measured(
        **arrays,
        sampled=sampled,
        predicted=2 * sampled + 1,
        lowest=np.zeros(9),
        nearness=np.full(9, 0.9),
        z_d=rng.normal(size=(9, 3, 4)),
    )


@pytest.mark.parametrize(
    ("returns", "expected", "loss"),
    [
        ({"own": 0.4}, "experts", 0.6),
        ({"known": 0.7, "ranked": 0.7, "optimal": 0.7, "adapted": 0.7}, "decoder", 0.3),
        ({"ranked": 0.5, "optimal": 0.5, "adapted": 0.5}, "ranking", 0.5),
        ({"optimal": 0.2, "adapted": 0.2}, "optimum", 0.8),
        ({"adapted": 0.3}, "dynamics", 0.7),
    ],
)
def test_the_bottleneck_is_where_the_return_is_lost(returns, expected, loss):
    measured = made_up(**returns)
    found = findings(Spaceship(SpaceshipOptions()), ANGLES, measured)
    assert bottleneck(found).name == expected
    assert bottleneck(found).loss == pytest.approx(loss)
    assert f"bottleneck: {expected}" in table(found, measured)
    assert as_data(found, measured)["bottleneck"] == expected
    ranking = next(finding for finding in found if finding.name == "ranking")
    assert ranking.number == pytest.approx(1.0)  # predictions in the right order


def test_measured_in_the_training_environments_of_a_tiny_run():
    problem = Problem(TINY)
    family = problem.engine.family
    count = len(problem.contexts)
    keys = jax.random.split(jax.random.key(0), 4)
    with relaxed():
        actors = make_actors(2 * count, family.observation, family.action, keys[0])
        policies = jax.tree.map(lambda x: x.reshape(2, count, 1, *x.shape[1:]), actors)
        body = make_body(family.observation, family.action, 3, keys[1])
        value = make_members(body.dynamics.observation, 3, 3, TINY.value, keys[2])
        bank = jax.random.normal(keys[3], (2 * count * count, 3))
        bank = bank / jnp.linalg.norm(bank, axis=-1, keepdims=True)
        scale = ReturnScale(jnp.zeros(()), jnp.ones(()), jnp.ones(()))
        adapter = Adapter(body, value, scale, bank[:count], bank)
        measured = measure(problem, policies, adapter, jax.random.key(1))
    assert measured.own.shape == (count,)
    assert effort(problem, policies).startswith(f"{count + (SAMPLE + count) + 2} policies and embeddings, 4 episodes")
    assert measured.sampled.shape == (SAMPLE + count, count)
    assert (measured.own <= measured.hindsight + 1e-6).all()  # the ship's episodes are all alike
    assert (measured.ranked <= measured.known + 1e-6).all()
    np.testing.assert_array_equal(measured.lowest, 0.0)
    assert (measured.nearness <= 1 + 1e-5).all()
    assert all(np.isfinite(x).all() for x in measured)
    assert len(png(diagnosis.draw(family.train(0).numbers, measured._asdict()))) > 10_000
