"""PPO: its loss against NumPy, and that it learns, and learns the same twice."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.config import PPOOptions
from pdvf.core.arrays import Box
from pdvf.engines import NativeEngine
from pdvf.engines.rollout import acting, episode_returns
from pdvf.rl import ppo
from pdvf.rl.networks import Actor, Critic, make_actor_critic

OPTIONS = PPOOptions(entropy_coefficient=0.03, value_coefficient=0.7, clip=0.2)
ROOM = Box(np.zeros(2, np.float32), np.full(2, 4.0, np.float32))  # scaled = (x - 2) / 2
FORCE = Box(np.full(3, -1.0, np.float32), np.full(3, 1.0, np.float32))


@pytest.fixture(scope="module")
def networks():
    """Small networks in which every number matters: random last layers and standard deviations."""
    actor, critic = make_actor_critic(ROOM, FORCE, 5, jax.random.key(1))
    rng = np.random.default_rng(2)

    def random(shape: tuple[int, ...]) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    actor = eqx.tree_at(
        lambda a: (a.layers[2].weight, a.layers[2].bias, a.log_std),
        actor,
        (random((3, 5)), random((3,)), random((3,))),
    )
    critic = eqx.tree_at(lambda c: (c.layers[2].weight, c.layers[2].bias), critic, (random((1, 5)), random((1,))))
    return actor, critic


def forward(layers, x: np.ndarray) -> np.ndarray:
    """Two tanh layers and a linear one, in NumPy and double precision."""
    x = (np.asarray(x, np.float64) - 2.0) / 2.0
    for i, layer in enumerate(layers):
        x = x @ np.asarray(layer.weight, np.float64).T + np.asarray(layer.bias, np.float64)
        x = np.tanh(x) if i < 2 else x
    return x


def test_log_density_by_hand():
    # Standard deviations 1 and 2, deviations 1 and 2 from the mean: each scaled deviation is 1, so
    #   -1/2 - log(2 pi) / 2 = -1.4189385 and -1/2 - log 2 - log(2 pi) / 2 = -2.1120857, together -3.5310242.
    log_std = jnp.log(jnp.array([1.0, 2.0]))
    density = ppo.log_density(jnp.array([0.0, 1.0]), log_std, jnp.array([1.0, 3.0]))
    assert float(density) == pytest.approx(-3.5310242, rel=1e-6)


def test_loss_against_numpy(networks):
    actor, critic = networks
    rng = np.random.default_rng(0)
    m = 64
    observation = rng.uniform(0, 4, (m, 2)).astype(np.float32)
    std = np.exp(np.asarray(actor.log_std, np.float64))
    mean = forward(actor.layers, observation)
    action = (mean + std * rng.normal(size=(m, 3))).astype(np.float32)
    log_prob = np.zeros(m)
    for j in range(3):
        log_prob += -((action[:, j] - mean[:, j]) ** 2) / (2 * std[j] ** 2) - np.log(std[j] * np.sqrt(2 * np.pi))
    ratio = np.exp(rng.uniform(-0.6, 0.6, m))
    advantage, target = rng.normal(size=m), rng.normal(size=m)
    for sign in (advantage > 0, advantage < 0):  # both clips, with both signs, and the middle
        assert np.any(sign & (ratio < 0.8))
        assert np.any(sign & (ratio > 1.2))
        assert np.any(sign & (ratio > 0.8) & (ratio < 1.2))

    surrogate = 0.0
    for r, a in zip(ratio, advantage, strict=True):
        if a > 0:
            surrogate += min(r, 1.2) * a / m
        else:
            surrogate += max(r, 0.8) * a / m
    error = np.mean((forward(critic.layers, observation)[:, 0] - target) ** 2) / 2
    entropy = sum(0.5 * np.log(2 * np.pi * np.e * s**2) for s in std)

    arrays = (observation, action, log_prob - np.log(ratio), advantage, target)
    batch = ppo.Batch(((), ()), *(jnp.asarray(x, jnp.float32) for x in arrays))
    total, (policy_loss, value_loss) = ppo.loss((actor, critic), batch, OPTIONS)
    assert float(policy_loss) == pytest.approx(-surrogate, rel=1e-4)
    assert float(value_loss) == pytest.approx(error, rel=1e-4)
    assert float(total) == pytest.approx(-surrogate + 0.7 * error - 0.03 * entropy, rel=1e-4)


@eqx.filter_jit
def policy_gradient(actor: Actor, critic: Critic, batch: ppo.Batch) -> Actor:
    return eqx.filter_grad(lambda a: ppo.loss((a, critic), batch, OPTIONS)[1][0])(actor)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.5, 1.0, False),
        (1.5, -1.0, True),
        (0.5, 1.0, True),
        (0.5, -1.0, False),
        (1.1, 1.0, True),
        (0.9, -1.0, True),
    ],
)
def test_clipping_stops_the_gradient(networks, ratio: float, advantage: float, moves: bool):
    """The clip holds back only those changes that would go further in the direction of the advantage."""
    actor, critic = networks
    observation, action = jnp.array([[1.0, 3.0]]), jnp.array([[0.1, 0.2, 0.3]])
    log_prob = ppo.log_density(jax.vmap(actor)(observation), actor.log_std, action) - jnp.log(ratio)
    batch = ppo.Batch(((), ()), observation, action, log_prob, jnp.array([advantage]), jnp.zeros(1))
    gradient = policy_gradient(actor, critic, batch)
    assert bool(jnp.any(gradient.layers[2].bias != 0)) == moves


def test_critic_starts_at_zero():
    critic = make_actor_critic(ROOM, FORCE, 5, jax.random.key(0))[1]
    values = jax.vmap(critic)(jax.random.uniform(jax.random.key(1), (10, 2), jnp.float32, 0.0, 4.0))
    np.testing.assert_array_equal(values, np.zeros(10))


LEARN = PPOOptions(
    steps=4096,
    environments=8,
    rollout=32,
    epochs=4,
    minibatches=4,
    learning_rate=3e-3,
    hidden=16,
    checkpoints=1,
)


@pytest.fixture(scope="module")
def learn(point):
    """Trains a policy for a hidden side: its last state, metrics, and returns without noise before and after.

    One policy at a time: with keys in a scan, JAX's check for their reuse takes `vmap` itself for a use.
    """
    engine = NativeEngine(point)

    @jax.jit
    def one(context: jax.Array, key: jax.Array, shuffle: jax.Array):
        first = ppo.initialise(engine, LEARN, context, key)
        last, metrics = ppo.train(engine, LEARN, context, first, shuffle, LEARN.updates_per_checkpoint)

        def returns(actor: Actor) -> jax.Array:
            return episode_returns(engine, context[None], acting(actor), jax.random.key(7))[0]

        return last, metrics, returns(first.actor), returns(last.actor)

    def run(side: float, seed: int):
        key, shuffle = jax.random.split(jax.random.key(seed))
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to an integer power
            return one(jnp.array([side]), key, shuffle)

    return run


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_learns_each_hidden_side(learn, side: float):
    last, metrics, before, after = learn(side, 0)
    np.testing.assert_array_equal(metrics.episodes, np.full(16, 32.0))  # 8 * 32 steps, 8 steps an episode
    assert int(last.update) == 16
    assert abs(float(before)) < 1.0
    assert float(after) > 5.5  # at most 6.5
    assert float(metrics.episode_return[-1]) > float(metrics.episode_return[0]) + 2.0  # with exploration


def test_same_seed_gives_the_same_bits(learn):
    def numbers(seed: int) -> list[np.ndarray]:
        last, metrics = learn(1.0, seed)[:2]
        last = last._replace(key=jax.random.key_data(last.key))
        return [np.asarray(x) for x in jax.tree.leaves((last, metrics)) if eqx.is_array(x)]

    one, again, other = numbers(3), numbers(3), numbers(4)
    assert len(one) > 20
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, again, strict=True))
    assert any(a.tobytes() != b.tobytes() for a, b in zip(one, other, strict=True))
