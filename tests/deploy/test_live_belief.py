"""An exported PD-VF-plus in a live session."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from test_belief_runtime import CODE, make_agent

from pdvf.adapt.belief import PRIOR_STD
from pdvf.core.arrays import Scaler
from pdvf.deploy.export import export
from pdvf.families import make_family
from pdvf.live.session import LiveSession
from tiny import relaxed


def test_a_belief_is_formed_anew_while_the_episode_goes_on(tmp_path):
    """Three parts of an untrained model of the ship: what it believes is nonsense, but it is its steps that say it."""
    family = make_family("spaceship")
    file = tmp_path / "plus.pdvf"
    with relaxed():
        file.write_bytes(export(make_agent(family), family, {}))
    session = LiveSession(family, file)
    for _ in range(3):
        session.step()
    assert session.agent.adapter.steps == 2
    place, ghost = session.agent.observation, session.ghost.adapter
    session.set_context(session.usual_context(np.array([1.0])))
    session.step()
    assert not session.restarts
    assert session.agent.steps == 4
    assert session.agent.adapter.steps == 0
    assert np.linalg.norm(session.agent.observation - place) < 1.0
    assert ghost.steps == 3  # it goes on


def test_the_ghost_of_pd_vf_plus_acts_as_in_the_middle_of_training(tmp_path):
    family = make_family("spaceship")
    file = tmp_path / "plus.pdvf"
    with relaxed():
        agent = make_agent(family)
        file.write_bytes(export(agent, family, {}))
    session = LiveSession(family, file)
    ghost = session.ghost
    for _ in range(3):
        seen = ghost.observation
        session.step()
    assert np.abs(ghost.adapter.mean).max() > 0.01  # it could know better
    std = np.sqrt(np.diagonal(ghost.adapter.covariance)) / PRIOR_STD
    with relaxed():
        scaled = agent.actor(jnp.concatenate([seen, jnp.zeros(CODE), jnp.asarray(std, jnp.float32)]))
    expected = Scaler.from_box(family.action).unscale(jnp.clip(scaled, -1.0, 1.0))
    np.testing.assert_allclose(ghost.action, expected, atol=1e-4)
