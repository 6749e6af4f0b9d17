"""Families of the user's own: what loads them, what steps them, and what `check-family` finds wrong with them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.cli.main import main
from pdvf.config import from_dict, to_dict
from pdvf.config.presets import preset
from pdvf.core.validation import ConfigError
from pdvf.deploy.pretrained import environment_of
from pdvf.engines import make_engine
from pdvf.experiment.family_checker import check_family, simulated_steps
from pdvf.families import GymFamily, Split
from pdvf.families.env_pool import UserEnvError
from push import Dictionary, Discrete, Draws, EndsAtOnce, Grows, Ignores, NotANumber, Push, Raises, Tells, Unseeded
from tiny import TINY, relaxed
from toy import Force


def make(environment=Push, train=(-1.0, 0.5, 1.0), test=(0.0,), horizon=30, probe_steps=2, **more) -> GymFamily:
    contexts = [[{"force": f, **more} for f in forces] for forces in (train, test)]
    return GymFamily("push", environment, *contexts, horizon=horizon, probe_steps=probe_steps)


@pytest.fixture(autouse=True)
def checks_off():
    with relaxed():
        yield


# The engine


def test_the_engine_plays_what_the_environment_plays():
    family = make()
    engine = make_engine(family)
    contexts = jnp.asarray(np.concatenate([family.train(0).contexts, family.test(0).contexts]))
    keys = jax.random.split(jax.random.key(0), 4)
    actions = np.random.default_rng(0).uniform(-1, 1, (40, 4, 1)).astype(np.float32)

    @jax.jit
    def play(keys):
        states, first = engine.reset(keys, contexts)

        def step(states, action):
            states, outcome = engine.step(contexts, states, action)
            return states, (outcome, states.over)

        return first, states.start, jax.lax.scan(step, states, jnp.asarray(actions))[1]

    first, start, (outcome, over) = play(keys)
    for i, force in enumerate((-1.0, 0.5, 1.0, 0.0)):
        environment = Push({"force": force})
        observation, _ = environment.reset(seed=int(start[i]))
        np.testing.assert_array_equal(first[i], observation)
        for t in range(30):
            observation, reward, terminated, _, _ = environment.step(actions[t, i])
            np.testing.assert_allclose(outcome.observation[t, i], observation, rtol=1e-6)
            assert float(outcome.reward[t, i]) == pytest.approx(reward, rel=1e-5)
            assert bool(outcome.terminated[t, i]) == terminated
            if terminated:
                assert bool(over[t + 1, i])
                assert float(outcome.reward[t + 1, i]) == 0.0  # nothing happens after the end
                break


def test_episodes_under_vmap_do_not_disturb_each_other():
    engine = make_engine(make())
    contexts = jnp.asarray(engine.family.train(0).contexts)

    def one(key):
        states, _ = engine.reset(jax.random.split(key, 3), contexts)
        step = lambda s, _: (lambda out: (out[0], out[1].observation))(engine.step(contexts, s, jnp.ones((3, 1))))  # noqa: E731
        return jax.lax.scan(step, states, None, length=5)[1]

    keys = jax.random.split(jax.random.key(1), 4)
    together = jax.jit(jax.vmap(one))(keys)
    for i in range(4):
        np.testing.assert_array_equal(together[i], jax.jit(one)(keys[i]))


def test_the_step_is_a_function_of_its_arguments():
    """One episode is continued in two ways, twice, and by an engine that has never met it."""
    family = make()
    engine = make_engine(family)
    contexts = jnp.tile(jnp.asarray(family.train(0).contexts[:1]), (2, 1))
    started, _ = engine.reset(jnp.tile(jax.random.key(0), 2), contexts)  # the same start, the same token
    half = jnp.array([[0.5], [0.5]])
    for _ in range(3):
        started, _ = engine.step(contexts, started, half)
    both = jnp.array([[1.0], [-1.0]])
    first = engine.step(contexts, started, both)[1]
    assert not np.array_equal(first.observation[0], first.observation[1])
    for other in (engine, make_engine(family)):  # the second has to play the history again
        again = other.step(contexts, started, both)[1]
        jax.tree.map(np.testing.assert_array_equal, again, first)
    turned = engine.step(contexts, started, both[::-1])[1]
    np.testing.assert_array_equal(turned.observation, first.observation[::-1])
    environment = Push({"force": float(contexts[0, 0])})
    environment.reset(seed=int(started.start[0]))
    for action in (0.5, 0.5, 0.5, 1.0):
        observation, _, _, _, _ = environment.step(np.array([action], np.float32))
    np.testing.assert_allclose(first.observation[0], observation, rtol=1e-6)


# Names on the command line


def test_a_family_is_loaded_from_a_file_and_its_configuration_comes_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        from test_own_family import make
        family = make()
        """)
    )
    config = preset("mine.py:family", "smoke")
    assert (config.environment.horizon, config.environment.probe_steps) == (30, 2)
    assert from_dict(to_dict(config)) == config
    assert replace(config, seed=3).family == "mine.py:family"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere", "unknown family 'nowhere'"),
        ("no.such.module:family", "cannot be loaded"),
        ("nothing.py:family", "is not there"),
        ("pdvf.config.presets:nothing", "has no 'nothing'"),
        ("pdvf.config.presets:PRESETS", "without name"),
    ],
)
def test_a_target_that_is_no_family_is_one_line(target, message, capsys):
    assert main(["check-family", target]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_environments_get_the_numbers_that_the_user_gave():
    family = make(test=(1 / 3,))
    context = family.test(0).contexts[0]
    assert float(context[0]) != 1 / 3
    assert family.named(context) == {"force": 1 / 3}
    assert environment_of(family, 4, context).unwrapped.force == 1 / 3  # pyright: ignore[reportAttributeAccessIssue]


# What is wrong with a family


@pytest.mark.parametrize(
    ("environment", "what", "words"),
    [
        (Discrete, "environments", "action space is Discrete"),
        (Dictionary, "environments", "observation space is Dict"),
        (NotANumber, "environments", "gave a reward of nan"),
        (Raises, "environments", "raised RuntimeError in step in context {'force': -1.0}: the motor is on fire"),
        (Grows, "environments", "gave an observation of 3 numbers"),
        (Ignores, "dynamics", "contexts that do the same: 1 and 2"),
        (Tells, "hidden", "the first observation tells force"),
        (Unseeded, "seeding", "differ in two tries"),
        (EndsAtOnce, "episodes", "too short to probe"),
    ],
)
def test_a_broken_family_is_caught(environment, what, words):
    bad = [finding for finding in check_family(make(environment)) if not finding.good]
    assert any(finding.what == what and words in finding.words for finding in bad), bad


def test_a_sound_family_passes():
    found = check_family(make())
    assert all(finding.good for finding in found), found
    assert {"contexts", "spaces", "seeding", "dynamics", "hidden", "episodes", "speed"} <= {f.what for f in found}


def test_contexts_of_training_and_test_may_not_overlap():
    with pytest.raises(ConfigError, match="none that is also in train_contexts"):
        make(test=(0.5,))


def test_one_training_context_is_no_family():
    with pytest.raises(ConfigError, match="expected at least two contexts"):
        make(train=(0.5,))


@dataclass(frozen=True)
class OneForce(Force):
    """A family of the user's own that says itself which contexts it has."""

    def train(self, seed):
        return Split((1,), np.ones((1, 1), np.float32))


def test_one_training_context_does_not_pass_the_check():
    first = check_family(OneForce())[0]
    assert (first.what, first.good, first.words) == (
        "contexts",
        False,
        "1 for training, 2 for testing, expected two for training",
    )


def test_contexts_need_the_same_names():
    with pytest.raises(ConfigError, match="one with the names"):
        GymFamily("push", Push, [{"force": 1.0}, {"mass": 1.0}], [{"force": 2.0}], horizon=9)


@pytest.mark.parametrize(
    ("horizon", "probe_steps", "words"),
    [
        (0, 1, "probe_steps is 1, expected between 1 and horizon - 1"),
        (5, 5, "probe_steps is 5, expected between 1 and horizon - 1 = 4"),
        (5.0, 1, "horizon is 5.0, expected a whole number"),
        (5, 1.0, "probe_steps is 1.0, expected a whole number"),
        (5, 0, "probe_steps is 0, expected between 1 and"),
    ],
)
def test_an_episode_must_be_longer_than_its_probing(horizon, probe_steps, words):
    with pytest.raises(ConfigError, match=words):
        make(horizon=horizon, probe_steps=probe_steps)


def test_steps_of_all_phases_by_hand():
    """Four environments of 8 steps, three for training: 64 steps of PPO each, then episodes."""
    kept = 2 * 3
    episodes = kept * 3 * 2  # collected
    episodes += 2 * (8 * kept + 2 * 3 * 2 * 4)  # two models: states to label, optima with their probes
    episodes += 2 * (2 * kept + 4 + 4) * 3  # embeddings that are scored
    episodes += (4 + 4 * 2 * 2) * 4  # evaluation
    assert simulated_steps(TINY, 3, 1) == 4 * 64 + 8 * episodes


# Films


def test_environments_that_draw_themselves_are_filmed():
    family = make(Draws)
    context = family.test(0).contexts[0].tobytes()
    pictures = family.pool.film(context, 3, np.ones((6, 1), np.float32), [0, 2, 6])
    assert pictures is not None
    assert pictures.shape == (3, 10, 20, 3)
    environment = Draws({"force": 0.0})
    environment.reset(seed=3)
    np.testing.assert_array_equal(pictures[0], environment.render())
    for _ in range(6):
        environment.step(np.ones(1))
    np.testing.assert_array_equal(pictures[2], environment.render())
    assert make().pool.film(context, 3, np.ones((6, 1)), [0]) is None


def test_a_picture_that_is_none_is_a_fault_of_the_environment():
    family = make(Draws, test=(9.0,))
    with pytest.raises(
        UserEnvError, match=r"gave a picture that is a str in render in context \{'force': 9.0\}, expected"
    ):
        family.pool.film(family.test(0).contexts[0].tobytes(), 0, np.zeros((0, 1)), [0])
