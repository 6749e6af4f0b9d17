"""An exported PD-VF-plus in a live session."""

from __future__ import annotations

import numpy as np
from test_belief_runtime import make_agent

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
    assert ghost.steps == 0  # it takes nothing in
    np.testing.assert_array_equal(ghost.mean, 0.0)
