"""Running statistics, the scale of rewards, and thinned episodes, against NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.config import PPOOptions
from pdvf.core.running_stats import RunningMeanStd, discounted_returns, update_stats
from pdvf.engines import NativeEngine
from pdvf.engines.rollout import subsample
from pdvf.rl import ppo
from pdvf.rl.networks import Actor, make_actor_critic
from pdvf.rl.recurrent_networks import make_recurrent
from tiny import relaxed


def test_parts_together_are_the_whole():
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(60, 3)) * [1.0, 5.0, 0.1] + [0.0, 40.0, -3.0]).astype(np.float32)
    return_stats = RunningMeanStd.none(3)
    for part in (data[:7], data[7:8], data[8:40], data[40:]):
        return_stats = update_stats(return_stats, jnp.asarray(part))
    assert float(return_stats.seen) == 60
    np.testing.assert_allclose(return_stats.mean, data.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(return_stats.std, data.std(axis=0), rtol=1e-4)


def test_discounted_returns_by_hand():
    rewards, stopped = jnp.array([[1.0], [2.0], [4.0]]), jnp.array([[0.0], [1.0], [0.0]])
    after, all_ = discounted_returns(jnp.array([8.0]), rewards, stopped, 0.5)
    assert all_[:, 0].tolist() == [5.0, 4.5, 4.0]  # 8/2 + 1, 5/2 + 2, and from 0 again
    assert after.tolist() == [4.0]


def test_thinned_episodes_keep_their_beginning_and_only_valid_steps():
    length = np.array([20, 3, 9])
    valid = jnp.asarray(np.arange(20)[:, None] < length)
    time = jnp.broadcast_to(jnp.arange(20)[:, None], (20, 3))
    draws = [subsample({"t": time, "v": valid}, valid, 6, 2, jax.random.key(i)) for i in range(40)]
    for drawn in draws:
        kept = np.asarray(drawn["t"])
        assert kept.shape == (6, 3)
        assert (kept[:2] == [[0, 0, 0], [1, 1, 1]]).all()
        assert (np.diff(kept, axis=0) > 0).all()
        assert np.asarray(drawn["v"]).sum(axis=0).tolist() == [6, 3, 6]
    seen = np.bincount(np.concatenate([np.asarray(d["t"])[2:, 0] for d in draws]), minlength=20)[2:]
    assert (seen > 0).all()  # any step can be drawn


def options(**more: bool) -> PPOOptions:
    return PPOOptions(steps=512, environments=4, rollout=8, epochs=1, minibatches=1, hidden=4, checkpoints=1, **more)


CHOICES = ("", "normalise_observations", "normalise_rewards", "stagger")


@pytest.fixture(scope="module", params=[make_actor_critic, make_recurrent], ids=["feed-forward", "recurrent"])
def trained(point, request) -> dict[str, Any]:
    """Policies after two updates, each with one option on."""
    engine = NativeEngine(point)

    def train(chosen: str):
        one = options(**({chosen: True} if chosen else {}))
        state = ppo.initialise(engine, one, jnp.array([1.0]), jax.random.key(0), request.param)
        return ppo.train(engine, one, jnp.array([1.0]), state, jax.random.key(1), 2)[0]

    with relaxed():
        return jax.jit(lambda: {chosen: train(chosen) for chosen in CHOICES})()


def first_weight(actor: Any) -> np.ndarray:
    return np.asarray((actor.layers[0] if isinstance(actor, Actor) else actor.first).weight)


def test_observations_are_scaled_by_what_was_seen(trained):
    plain, scaled = trained[""], trained["normalise_observations"]
    assert plain.actor.observation.centre.tolist() == [0.0]
    assert plain.actor.observation.width.tolist() == [1.0]
    for network in (scaled.actor, scaled.critic):
        assert 0.0 < float(network.observation.width[0]) < 1.0  # positions lie within a few quarters of 0
    assert scaled.actor.observation.width == scaled.critic.observation.width


def test_rewards_are_scaled_by_the_spread_of_returns(trained):
    plain, scaled = trained[""], trained["normalise_rewards"]
    assert float(plain.return_stats.seen) == 0.0
    assert float(scaled.return_stats.seen) == 2 * 4 * 8
    assert float(scaled.return_stats.variance[0]) != 1.0
    assert np.isfinite(float(scaled.return_stats.mean[0]))


def test_first_episodes_end_at_different_times(trained):
    """Episodes of 8 steps, 16 steps played: those that began at 0 are at 0 again."""
    assert trained[""].time.tolist() == [0, 0, 0, 0]
    assert trained["stagger"].time.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("name", CHOICES[1:])
def test_each_option_changes_what_is_learned(trained, name):
    weights = [first_weight(trained[key].actor) for key in ("", name)]
    assert not np.array_equal(*weights)
