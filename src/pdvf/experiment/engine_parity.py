"""Compares an engine with MuJoCo in C: the error of one step, field by field, and the returns of the same policies."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Scaler
from pdvf.engines import Engine, MujocoCEngine, make_engine
from pdvf.families.base import Family, MujocoFamily
from pdvf.paper.problem import transfer
from pdvf.reports.tables import Table
from pdvf.rl.networks import Actor, make_actor_critic

TOLERANCE = 0.02  # of the mean size of returns
SIZES = {"max": "largest error", "mean": "mean error", "mean_first_step": "in first step", "mean_size": "mean size"}
NOISE = 0.3  # of the largest action, along the paths on which single steps are compared


def random_policies(family: Family, count: int, key: Array) -> Actor:
    """Policies [count, ...] that nobody has trained and that move all the same."""

    def one(key: Array) -> Actor:
        actor, _ = make_actor_critic(family.observation, family.action, 64, key)
        return eqx.tree_at(lambda a: a.layers[-1].weight, actor, 100.0 * actor.layers[-1].weight)

    return jax.vmap(one)(jax.random.split(key, count))


def check_engine(
    family: MujocoFamily, name: str, actors: Actor, seed: int, steps: int, episodes: int
) -> dict[str, Any]:
    """Everything that is compared, as plain data; `actors` are [P, ...]."""
    reference, other = MujocoCEngine(family), make_engine(family, name, seed)
    contexts = np.concatenate([family.train(seed).contexts, family.test(seed).contexts])
    step_key, play_key = jax.random.split(jax.random.key(seed))
    errors = _one_step(reference, other, contexts, actors, step_key, steps)
    repeated = jnp.asarray(np.repeat(contexts, episodes, axis=0))
    ours, theirs = (
        np.asarray(jax.jit(partial(transfer, engine, repeated))(actors, play_key), np.float64)  # [P, E * episodes]
        for engine in (reference, other)
    )
    gap = abs(float(theirs.mean() - ours.mean())) / float(np.abs(ours).mean())
    spread = np.sqrt(ours.var(ddof=1) / ours.size + theirs.var(ddof=1) / theirs.size) / np.abs(ours).mean()
    return {
        "family": family.name,
        "engine": name,
        "reference": "c",
        "device": jax.devices()[0].device_kind,
        "policies": int(actors.log_std.shape[0]),
        "environments": int(contexts.shape[0]),
        "steps": steps,
        "episodes": episodes,
        "one_step": errors,
        "returns": {
            "c": float(ours.mean()),
            name: float(theirs.mean()),
            "gap": gap,
            "standard_error_of_gap": float(spread),
            "tolerance": TOLERANCE,
            "agree": gap <= TOLERANCE,
        },
    }


def _one_step(reference: MujocoCEngine, other: Engine, contexts: np.ndarray, actors: Actor, key: Array, steps: int):
    """Largest and mean difference of each field after one step from the same state, along paths of the reference."""
    scaler = Scaler.from_box(reference.family.action)
    reset_key, noise_key = jax.random.split(key)

    @jax.jit
    def path(actors: Actor, contexts: Array):
        def one(actor: Actor, reset_key: Array, noise_key: Array):
            states, observation = reference.reset(jax.random.split(reset_key, contexts.shape[0]), contexts)

            def step(carry: Any, key: Array):
                states, observation, alive = carry
                action = jax.vmap(actor)(observation)
                action = jnp.clip(action + NOISE * jax.random.normal(key, action.shape), -1.0, 1.0)
                expected, outcome = reference.step(contexts, states, scaler.unscale(action))
                given, other_outcome = other.step(contexts, states.physics, scaler.unscale(action))
                fields = {
                    "qpos": (expected.physics.qpos, given.qpos),
                    "qvel": (expected.physics.qvel, given.qvel),
                    "reward": (outcome.reward[:, None], other_outcome.reward[:, None]),
                }
                errors = {name: (jnp.abs(a - b), jnp.abs(a)) for name, (a, b) in fields.items()}
                agree = outcome.terminated == other_outcome.terminated
                carry = (expected, outcome.observation, alive & ~outcome.terminated)
                return carry, (errors, agree, alive)

            carry = (states, observation, jnp.ones(contexts.shape[0], bool))
            return jax.lax.scan(step, carry, jax.random.split(noise_key, steps))[1]

        count = actors.log_std.shape[0]
        return jax.vmap(one)(actors, jax.random.split(reset_key, count), jax.random.split(noise_key, count))

    errors, agree, alive = jax.tree.map(np.asarray, path(actors, jnp.asarray(contexts)))  # [P, steps, E, ...]
    rows: dict[str, Any] = {"steps_compared": int(alive.sum())}
    for name, (error, size) in errors.items():
        rows[name] = {
            "max": float(error[alive].max()),
            "mean": float(error[alive].mean()),
            "mean_first_step": float(error[:, 0].mean()),
            "mean_size": float(size[alive].mean()),
        }
    rows["same_end"] = float(agree[alive].mean())
    return rows


def table(result: dict[str, Any]) -> str:
    """What was compared, for people."""
    steps, returns = result["one_step"], result["returns"]
    head = (
        f"{result['family']}: engine {result['engine']} against c on {result['device']}, one step from the same state "
        f"({steps['steps_compared']} steps)"
    )
    rows = [[name, *(f"{steps[name][size]:.2e}" for size in SIZES)] for name in ("qpos", "qvel", "reward")]
    fields = Table(["field", *SIZES.values()], rows).terminal()
    verdict = "agree" if returns["agree"] else "DO NOT AGREE"
    found = (
        f"mean return of {result['policies']} policies in {result['environments']} environments: "
        f"c {returns['c']:.2f}, {result['engine']} {returns[result['engine']]:.2f}; apart by {returns['gap']:.2%} "
        f"(standard error {returns['standard_error_of_gap']:.2%}) of their mean size: they {verdict} to 2 %"
    )
    return "\n".join((head, fields, found))
