"""The smallest runs and models that still have every part, shared by several test files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import (
    AutoencoderOptions,
    BaselineOptions,
    CollectOptions,
    Config,
    EvaluateOptions,
    PlusOptions,
    PolicyAutoencoderOptions,
    PPOOptions,
    ValueOptions,
    to_dict,
)
from pdvf.config.presets import preset
from pdvf.core.arrays import Array, Box, Scaler
from pdvf.core.networks import FeedForward, SetEncoder
from pdvf.experiment.plan import recipes_for
from pdvf.experiment.store import RunStore
from pdvf.families.builtin.spaceship import SpaceshipOptions
from pdvf.methods import METHODS, agent_artefact
from pdvf.paper.dynamics import DynamicsAutoencoder
from pdvf.paper.pipeline import PHASES, ArtefactShapes, Problem, artefact_shapes
from pdvf.paper.policy import PolicyDecoder
from pdvf.paper.prober import Body
from pdvf.rl.networks import Actor, make_actor_critic

AUTOENCODER = AutoencoderOptions(embedding=3, model=8, dropout=0.0, epochs=1, batch=8)
TINY = Config(
    "spaceship",
    # A reward that falls slowly, so that returns differ in their first digits.
    SpaceshipOptions(environments=4, train_environments=3, horizon=8, decay=0.3),
    policy_seeds=1,
    model_seeds=2,
    ppo=PPOOptions(steps=64, environments=2, rollout=8, epochs=1, minibatches=2, hidden=8, checkpoints=2),
    collect=CollectOptions(episodes=2),
    dynamics=AUTOENCODER,
    policy=PolicyAutoencoderOptions(embedding=3, model=8, epochs=1, batch=8, set_size=4),
    value=ValueOptions(
        members=2,
        hidden=8,
        anchor=0.5,
        epochs=1,
        stages=2,
        stage_epochs=1,
        batch=16,
        interpolations=4,
        uniform=4,
        probes=2,
        decoder_rounds=1,
        decoder_epochs=1,
    ),
    evaluate=EvaluateOptions(episodes=2),
    baselines=BaselineOptions(
        clusters=2,
        meta_batch=2,
        meta_batches=2,
        recurrent_environments=2,
        recurrent_rollout=8,
        recurrent_minibatches=2,
        estimation_rounds=2,
        estimation_updates=2,
    ),
    plus=PlusOptions(code=2, width=16, rows=64, updates=20, batch=64),
)


def command_line(config: Config) -> list[str]:
    """The options that make the preset `smoke` this configuration; those of `TINY` that are `Fixed` are in a file."""
    file = Path(__file__).with_name("tiny.json")
    smoke, wanted = flat(to_dict(preset(config.family, "smoke"))), flat(to_dict(config))
    smoke |= json.loads(file.read_text())
    words = ["--preset", "smoke", "--config", str(file)]
    for name, value in wanted.items():
        if value != smoke[name]:
            words += [f"--{name.replace('_', '-')}", json.dumps(value)]
    return words


def flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options by dotted name."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def random_run(
    folder: Path, config: Config = TINY, phases: Sequence[str] = ("train", "collect", "embed", "fit")
) -> RunStore:
    """A run whose phases left random numbers: what they learned does not matter to whoever uses it."""
    store, problem, rng = RunStore.create(folder, to_dict(config), "test"), Problem(config), np.random.default_rng(0)

    def draw(like: Any) -> Any:
        numbers = 0.4 * rng.normal(size=like.shape) + 0.2
        return jnp.asarray(numbers > 0 if like.dtype == bool else numbers, like.dtype)

    for name in (leaf for phase in phases for leaf in PHASES[phase].leaves):
        store.save(name, jax.tree.map(draw, artefact_shapes(problem)[name]), info={"history": [], "seconds": 0.0})
    return store


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Without the checks that whole programs trip over.

    optax raises floats to whole powers, and key-reuse checking takes a vmapped scan over keys for a reuse.
    """
    with jax.debug_key_reuse(False), jax.numpy_dtype_promotion("standard"):
        yield


def same_scale(size: int) -> Scaler:
    """Leaves numbers as they are."""
    return Scaler(jnp.zeros(size), jnp.ones(size))


def make_actors(count: int, observation: Box, action: Box, key: Array) -> Actor:
    """Policies [count, ...] that differ and do something."""

    def one(key: Array) -> Actor:
        network_key, weight_key, bias_key = jax.random.split(key, 3)
        actor, _ = make_actor_critic(observation, action, 8, network_key)
        last = actor.layers[2]
        assert last.bias is not None
        new = jax.random.normal(weight_key, last.weight.shape), jax.random.normal(bias_key, last.bias.shape)
        return eqx.tree_at(lambda a: (a.layers[2].weight, a.layers[2].bias), actor, new)

    return jax.jit(jax.vmap(one))(jax.random.split(key, count))


def make_decoder(observation: int, embedding: int, action: int, key: Array) -> PolicyDecoder:
    """An untrained decoder."""
    inputs = observation + embedding * (embedding + 1) // 2
    return PolicyDecoder(FeedForward((inputs, 16, 16, action), key), same_scale(observation))


def make_body(observation: Box, action: Box, embedding: int, key: Array) -> Body:
    """An untrained body whose embeddings have `embedding` dimensions."""
    o, a = observation.size, action.size
    keys = jax.random.split(key, 4)
    probe = jax.tree.map(lambda x: x[0], make_actors(1, observation, action, keys[0]))
    dynamics = DynamicsAutoencoder(
        SetEncoder(2 * o + a, 8, embedding, 0.0, keys[1]),
        FeedForward((o + a + embedding, 8, o), keys[2]),
        same_scale(o),
        same_scale(o),
    )
    return Body(probe, dynamics, make_decoder(o, embedding, a, keys[3]))


def random_agent(problem: Problem, method: str, seed: int = 0) -> Any:
    """An agent of a method with the sizes of a problem, that nobody has trained and whose parts all matter."""
    name = agent_artefact(method)
    shapes = ArtefactShapes(problem, PHASES | recipes_for([METHODS[method]]))[name]
    rng = np.random.default_rng(seed)

    def fill(path: Any, leaf: Any) -> Array:
        place, shape = jax.tree_util.keystr(path), leaf.shape[1:]
        new = rng.normal(size=shape) / max(shape[-1:], default=1) ** 0.5
        if place.endswith((".width", ".high", ".power", ".temperature")):
            new = np.abs(new) + 0.5
        if place.endswith(".sign"):
            new = np.ones(shape)
        if ".value.observation" in place:
            new[:] = new[0]  # all members have the same
        return jnp.asarray(new, leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes)


def numpy_act(actor: Actor, index: int, observation: np.ndarray) -> np.ndarray:
    """What policy `index` of [P, ...] does, computed with NumPy: two tanh layers, a linear one, clipped."""
    x = (observation - np.asarray(actor.observation.centre)[index]) / np.asarray(actor.observation.width)[index]
    for i, layer in enumerate(actor.layers):
        assert layer.bias is not None
        x = x @ np.asarray(layer.weight)[index].T + np.asarray(layer.bias)[index]
        x = np.tanh(x) if i < 2 else x
    return np.clip(x, -1.0, 1.0)
