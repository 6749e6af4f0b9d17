"""Sessions without a page: two agents from one start, contexts that change under way, dials."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from pdvf.core.arrays import Box
from pdvf.core.validation import ConfigError
from pdvf.deploy.pretrained import find, load
from pdvf.families.base import Split
from pdvf.families.builtin.ant_legs import AntLegs
from pdvf.live.session import (
    HostSimulation,
    LiveSession,
    dials_of,
    estimate,
    make_simulation,
    measure_truth,
)


@pytest.fixture(scope="module")
def ship():
    file = find("spaceship")
    return load(file)[1], file


def test_both_start_alike_and_part(ship):
    session = LiveSession(*ship)
    np.testing.assert_array_equal(session.agent.observation, session.ghost.observation)
    for _ in range(5):
        session.step()
    assert not np.array_equal(session.agent.observation, session.ghost.observation)
    assert np.isfinite(session.agent.adapter.predicted_return)
    assert np.isnan(session.ghost.adapter.predicted_return)


def test_the_ghost_of_pd_vf_plays_one_policy_in_all_environments(ship):
    session = LiveSession(*ship)
    chosen = []
    for angle in (0.5, 2.5):
        session.set_context(session.usual_context(np.array([angle])))
        session.begin()
        session.step()
        session.step()
        chosen.append([player.adapter.z_pi for player in (session.agent, session.ghost)])
    (agent, ghost), (other_agent, other_ghost) = chosen
    np.testing.assert_array_equal(ghost, other_ghost)
    assert abs(agent @ other_agent) < 0.99


def test_a_pair_ends_when_both_have_and_the_next_begins(ship):
    session = LiveSession(*ship)
    for _ in range(2 * session.family.horizon):
        session.step()
        if session.over:
            break
    assert session.over
    ((_, agent, ghost),) = session.finished
    assert 0 < ghost < agent <= 1  # knowing the charges pays
    episode = session.episode
    session.step()
    assert session.episode == episode + 1
    assert session.agent.steps == 0
    assert len(session.finished) == 1


def test_an_ant_that_does_not_adapt_falls_behind_in_a_headwind():
    file = find("ant-wind")
    session = LiveSession(load(file)[1], file)
    session.set_context(session.usual_context(np.array([np.pi])))
    session.begin()
    while len(session.finished) < 3:
        session.step()
    ours, theirs = (np.mean([getattr(pair, who) for pair in session.finished]) for who in ("agent", "ghost"))
    assert ours > 1.3 * theirs


def test_pd_vf_adapts_at_the_start_so_another_context_begins_another_episode(ship):
    session = LiveSession(*ship)
    session.step()
    session.step()
    before, episode = estimate(session.agent.adapter).mean, session.episode
    session.set_context(session.usual_context(np.array([1.0])))
    session.step()
    assert session.restarts
    assert (session.episode, session.agent.steps) == (episode + 1, 0)
    session.step()
    session.step()
    assert np.linalg.norm(estimate(session.agent.adapter).mean - before) > 0.1


def test_what_is_hidden_is_what_moves_the_ship(ship):
    """Two charges of no size leave the ship to its engine alone; charges of twice the size push it twice as hard."""
    simulation, action = make_simulation(ship[0]), np.zeros(2, np.float32)
    moved = []
    for size in (0.0, 1.0, 2.0):
        start = simulation.reset(np.array([2.0, size], np.float32), 0)
        moved.append(simulation.step(np.array([2.0, size], np.float32), action)[0] - start)
    np.testing.assert_allclose(moved[0], 0.0, atol=1e-6)
    np.testing.assert_allclose(moved[2], 2 * moved[1], rtol=1e-4)
    own = simulation.step(np.array([2.0], np.float32), action)[0]
    simulation.reset(np.array([2.0], np.float32), 0)
    assert own.shape == (2,)


def test_dials_are_the_familys_own_or_what_its_environments_span(ship):
    angle, size = dials_of(ship[0])
    assert (angle.low, angle.high) == (0.0, pytest.approx(2 * np.pi))
    assert (size.name, size.usual) == ("size of the charges", ship[0].options.radius)
    legs = dials_of(AntLegs())
    assert [dial.name for dial in legs] == list(AntLegs.context_names)
    assert (legs[0].low, legs[0].high) == (pytest.approx(0.1), pytest.approx(0.3))
    assert (legs[7].low, legs[7].high) == (pytest.approx(0.2), pytest.approx(0.6))


@pytest.mark.parametrize("context", [[1.0], [1.0, np.nan], [1.0, 2.0, 3.0]])
def test_a_context_that_is_none(ship, context):
    session = LiveSession(*ship)
    with pytest.raises(ConfigError, match="expected a finite number for each of"):
        session.set_context(np.array(context))


def test_the_truth_is_where_many_probings_come_out(ship):
    first, second = (measure_truth(*ship, np.array([angle, 1.5], np.float32)) for angle in (0.5, 2.5))
    session = LiveSession(*ship)
    session.set_context(np.array([0.5, 1.5]))
    session.begin()
    session.step()
    session.step()
    found = estimate(session.agent.adapter).mean
    assert np.linalg.norm(found - first) < 0.1 * np.linalg.norm(found - second)


class Drift(gymnasium.Env):
    """A point that drifts; it draws itself as a grey picture, the lighter the farther it is."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    closed = 0

    def __init__(self, wind):
        self.wind, self.render_mode = wind, None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0.0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place += float(action[0]) + self.wind
        return np.array([self.place], np.float32), -abs(self.place), abs(self.place) > 3, False, {}

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.full((4, 6, 3), min(abs(self.place) * 50, 255), np.uint8)

    def close(self):
        Drift.closed += 1


class DriftFamily:
    """A `HostFamily`; a `GymFamily` would start worker processes to learn the sizes."""

    name = "drift"
    context_names = ("wind",)
    observation = Box(np.full(1, -10.0, np.float32), np.full(1, 10.0, np.float32))
    action = Box(-np.ones(1, np.float32), np.ones(1, np.float32))
    horizon, probe_steps = 20, 1

    def train(self, seed):
        return Split((1, 2), np.array([[-1.0], [1.0]], np.float32))

    def test(self, seed):
        return Split((3,), np.array([[0.5]], np.float32))

    def make(self, context):
        return Drift(**context)


def test_an_environment_of_gymnasium_is_made_for_each_context_and_draws_itself():
    simulation = make_simulation(DriftFamily())
    assert isinstance(simulation, HostSimulation)
    first = np.array([1.0], np.float32)
    simulation.reset(first, 0)
    assert simulation.seconds == pytest.approx(0.1)
    observation, reward, over = simulation.step(first, np.zeros(1))
    assert (observation.tolist(), reward, over) == ([1.0], -1.0, False)
    assert simulation.shown.shape == (4, 6, 3)
    assert simulation.shown[0, 0, 0] == 50
    closed = Drift.closed
    simulation.reset(first, 1)
    assert Drift.closed == closed
    simulation.reset(np.array([-1.0], np.float32), 0)
    assert Drift.closed == closed + 1
    simulation.close()
    assert Drift.closed == closed + 2


def test_an_environment_that_cannot_draw_goes_on(monkeypatch):
    def fails(self):
        raise ImportError("no module named pygame")

    monkeypatch.setattr(Drift, "render", fails)
    simulation = make_simulation(DriftFamily())
    simulation.reset(np.array([1.0], np.float32), 0)
    assert simulation.shown.startswith("draws no picture: no module named pygame")


def test_an_environment_that_raises_is_one_line():
    simulation = make_simulation(DriftFamily())
    context = np.array([1.0], np.float32)
    simulation.reset(context, 0)
    with pytest.raises(ConfigError, match="a function of drift raised IndexError in step"):
        simulation.step(context, np.zeros(0))
