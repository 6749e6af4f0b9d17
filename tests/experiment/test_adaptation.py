"""Is it adapting: what is asked of agents whose answers are known, and what is concluded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fake_run import make_run
from pdvf.core.arrays import Array
from pdvf.experiment.adaptation import EPISODES, measure, others
from pdvf.experiment.errors import RunError
from pdvf.experiment.family_checker import check_family
from pdvf.families.builtin.spaceship import Spaceship
from pdvf.methods.base import Hidden, KeepsMemory
from pdvf.reports import page
from pdvf.reports.adaptation import Adaptation, summarise
from pdvf.reports.data import read_run
from pdvf.reports.readouts import identified, left_out_r2, linear, overall, unseen_r2
from tiny import relaxed
from toy import Force, ToyProblem

ANGLES = np.linspace(0.0, 5.0, 9)[:, None].astype(np.float32)


class Pushing(KeepsMemory):
    """Pushes to the right, sees what that does, and from then on in the direction that pays: the toy's best agent."""

    believes: Array  # [] 1; where it is 0, it pushes to the right whatever it has seen

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """It has seen nothing."""
        del observation, hidden
        return jnp.zeros(1)

    def act(self, memory: Array, observation: Array, feedback: Any) -> tuple[Array, Array]:
        """As `Adapting` says."""
        learned = self.learn(memory, observation, feedback)
        return self.decide(learned, observation), learned

    def learn(self, memory: Array, observation: Array, feedback: Any) -> Array:
        """The gain: where the first push has led to."""
        pushed = (observation[1] < 0.5) & (memory[0] == 0.0)
        return jnp.where(pushed, observation[:1] / jnp.where(feedback.first > 0.5, 1.0, feedback.action), memory)

    def decide(self, memory: Array, observation: Array) -> Array:
        """A push of 1."""
        return jnp.where(self.believes * memory < 0.0, -1.0, 1.0)

    def code(self, memory: Array) -> Array:
        """The gain."""
        return memory

    def out_of_distribution(self, memory: Array) -> Array:
        """Gains of up to 1 are known."""
        return jnp.abs(memory[0])


def asked(believes: float) -> Adaptation:
    agents, problem = Pushing(jnp.full(2, believes)), ToyProblem()
    method: Any = SimpleNamespace(name="pushing")
    with relaxed():
        made, said = measure(problem, method, agents).advance((), 0)
    arrays = {name: np.asarray(x) for name, x in made["adaptation-pushing"].items()}
    assert float(said["evaluation_steps"]) == 2 * 2 * 6 * EPISODES * Force.horizon
    gains = [-1, -0.6, 0.6, 1, -0.8, 0.8]
    np.testing.assert_allclose(
        arrays["codes"], np.tile(np.reshape(gains, (6, 1, 1)), (2, 1, 1, EPISODES, 1)), rtol=1e-6
    )
    np.testing.assert_allclose(arrays["out_of_distribution"][0, :, 0], np.abs(gains), rtol=1e-6)
    return summarise("pushing", Force.context_names, arrays)


def test_an_agent_that_adapts():
    found = asked(1.0)
    assert found.steps == (1,)
    assert found.known["gain"] == pytest.approx(1.0, abs=1e-4)
    assert found.unseen["gain"] == pytest.approx(1.0, abs=1e-4)
    assert found.choice == pytest.approx(1.0)
    # A push to the right, then four that pay: 4 * 0.8. Misled by the next environment but one, 3 episodes of 8, all
    # four cost as much; by the two others, they earn nothing on average.
    assert found.own == pytest.approx(3.2)
    assert found.loss.value == pytest.approx(3.2 + 3.2 * 3 / 8)
    assert found.adapts
    assert found.sentence("Pushing") == (
        "Pushing: adapts (R² of what is hidden after 1 step: gain 1.00; 100 % of how it acts is its choice; "
        "another environment's inference costs 4.4 of a return of 3.2)"
    )


def test_asked_after_the_steps_that_are_wanted():
    """Those that an episode has, and the probing step."""
    method: Any = SimpleNamespace(name="pushing")
    with relaxed():
        made, _ = measure(ToyProblem(), method, Pushing(jnp.ones(1)), (3, Force.horizon)).advance((), 0)
    assert made["adaptation-pushing"]["steps"].tolist() == [1, 3]


def test_an_agent_that_knows_and_does_not_use_it():
    found = asked(0.0)
    assert found.known["gain"] == pytest.approx(1.0, abs=1e-4)
    assert (found.choice, found.own, found.loss.value) == (0.0, pytest.approx(0.0, abs=1e-6), 0.0)
    assert not found.adapts
    assert "selection, not adaptation; best-single does as well" in found.sentence()


def test_a_loss_that_is_next_to_nothing_is_none():
    found = asked(1.0)
    assert not found._replace(loss=found.loss._replace(value=0.005 * found.own, low=0.001)).adapts
    assert not found._replace(loss=found.loss._replace(low=-0.1)).adapts


def test_misled_by_every_other_environment_in_turn():
    rows = others(4, 6).reshape(4, 6)
    for e, row in enumerate(rows):
        environments, episodes = np.divmod(row, 6)
        np.testing.assert_array_equal(episodes, np.arange(6))
        assert sorted(set(environments.tolist())) == [other for other in range(4) if other != e]
    for column in rows.T:
        assert len(set(column.tolist())) == 4  # nobody misleads two


def test_context_that_codes_hold_and_context_that_they_do_not():
    rng = np.random.default_rng(0)
    around = np.concatenate([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
    held = np.repeat((around @ rng.normal(size=(2, 4)))[:, None], 3, axis=1) + 0.01 * rng.normal(size=(9, 3, 4))
    assert left_out_r2(("angle",), ANGLES, held)["angle"] > 0.95
    assert unseen_r2(("angle",), ANGLES, held, 6)["angle"] > 0.95
    assert left_out_r2(("angle",), ANGLES, rng.normal(size=(9, 3, 4)))["angle"] < 0.5
    assert left_out_r2(("angle",), ANGLES[:2], held[:2]) == {}
    assert np.isnan(overall({}))


def test_each_hidden_number_has_its_own_score():
    """One that the codes hold, one that they do not, one that does not vary."""
    rng = np.random.default_rng(1)
    contexts = np.stack([np.arange(8.0), rng.normal(size=8), np.full(8, 9.8)], axis=1)
    codes = np.repeat(contexts[:, None, :1], 4, axis=1)
    found = left_out_r2(("mass", "length", "gravity"), contexts, codes)
    assert found["mass"] > 0.99
    assert found["length"] < 0.3
    assert "gravity" not in found
    # By hand: y = x regressed in 0 .. 5 with next to no penalty, scored in 6 and 7.
    assert unseen_r2(("mass",), contexts[:, :1], codes, 6)["mass"] == pytest.approx(1.0, abs=0.01)


def payload(contexts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Codes [E, 4, 3] of a mass at a place on a body that weighs 14: its share, moment and inertia, and some noise."""
    mass, place = contexts.T
    shares = np.stack([mass, mass * place, mass * place**2], axis=1) / (14 + mass)[:, None]
    return np.repeat(shares[:, None], 4, axis=1) + 1e-3 * rng.normal(size=(len(contexts), 4, 3))


def test_context_that_codes_hold_in_a_way_that_is_not_linear():
    rng = np.random.default_rng(0)
    train = np.array([(m, p) for m in (0.5, 3.0, 6.0) for p in (-0.5, 0.0, 0.5)])
    unseen = np.array([(m, p) for m in (2.0, 4.0, 5.0) for p in (-0.3, 0.2)])
    contexts = np.concatenate([train, unseen])
    codes, names = payload(contexts, rng), ("mass", "place")
    known, found = identified(names, contexts, codes, len(train))
    assert min(found.values()) > 0.98
    assert known["place"] > 0.6  # a light payload does not show where it is
    only = identified(names, contexts, codes, len(train), [linear])
    assert only[0]["place"] < 0.3
    assert only[1]["place"] < 0.95


def test_a_readout_is_chosen_where_it_was_fitted():
    """What the codes of unseen environments hold changes their score, and nothing else."""
    rng = np.random.default_rng(0)
    contexts = rng.uniform(0, 1, (12, 1))
    codes = np.repeat(contexts[:, None], 4, axis=1) + 0.01 * rng.normal(size=(12, 4, 1))
    known, found = identified(("gain",), contexts, codes, 8)
    codes[8:] = rng.normal(size=(4, 4, 1))
    again, worse = identified(("gain",), contexts, codes, 8)
    assert again == known
    assert worse["gain"] < 0.0 < 0.95 < found["gain"]


def made_up() -> dict[str, np.ndarray]:
    """Of a PD-VF on Spaceship whose z_d is the place on the circle, and which loses half of its return without it."""
    contexts = np.concatenate([Spaceship().train(0).contexts, Spaceship().test(0).contexts])
    codes = np.concatenate([np.cos(contexts), np.sin(contexts)], axis=1)
    returns = np.random.default_rng(0).uniform(0.8, 1.0, (1, 15, EPISODES)).astype(np.float32)
    return {
        "steps": np.array([1], np.int32),
        "train_count": np.array(15, np.int32),
        "contexts": contexts,
        "codes": np.tile(codes[None, None, :, None], (1, 1, 1, EPISODES, 1)),
        "choice": np.array([0.25], np.float32),
        "own": returns,
        "swapped": returns / 2,
        "out_of_distribution": np.ones((1, 20, EPISODES), np.float32),
    }


def test_the_report_says_it(tmp_path):
    store = make_run(tmp_path / "run")
    store.save("adaptation-pd-vf", made_up())
    page_of_it = page.render(read_run(store), [], [])
    assert "PD-VF: adapts (R² of what is hidden after 1 step: angle 1.00; 25 % of how it acts" in page_of_it
    store.save("adaptation-pd-vf", made_up() | {"own": np.ones((1, 14, EPISODES), np.float32)})
    with pytest.raises(RunError, match=r"array 'swapped' is float32\[1, 15, 8\], expected float32\[1, 14, 8\]"):
        read_run(store)
    store.save("adaptation-pd-vf", made_up() | {"train_count": np.zeros_like(made_up()["train_count"])})
    with pytest.raises(RunError, match=r"has 0 of \d+ environments for training, expected some"):
        read_run(store)


class Still(Force):
    """The gain does nothing."""

    def transition(self, context: Array, state: Array, action: Array) -> tuple[Array, Array, Array]:
        return super().transition(jnp.ones_like(context), state, action)


def test_what_identifies_is_told_before_training():
    with relaxed():
        told = {finding.what: finding.words for finding in check_family(Force())}
        nothing = [finding.words for finding in check_family(Still())]
    assert told["identified"].startswith("R2 of the context from 1/9 random steps: gain ")
    assert "(0.9 after " in told["identified"]
    assert any("(0.9 not reached)" in words for words in nothing)
    assert any("no method can adapt to what does not show in the first 9 steps" in words for words in nothing)
