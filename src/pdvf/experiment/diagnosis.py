"""What holds a trained PD-VF back: five measurements in the training environments, each with the return it costs.

From the best policy there is to what PD-VF gets, the return is lost in four steps, which add up: the decoder does not
play what it encodes, W does not rank what it could choose from, the optimum of W lies where no policy was seen, and
z_d is inferred instead of known. A fifth loss comes before them: experts that others beat in their own environment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array
from pdvf.families.base import Family
from pdvf.paper.adapter import Adapter
from pdvf.paper.problem import PROBE_NOISE, Problem, finished_policies, transfer
from pdvf.reports.readouts import left_out_r2, overall
from pdvf.reports.statistics import rank_correlation
from pdvf.rl.networks import Actor

SAMPLE = 256
"""Embeddings of training policies that W ranks."""
PROBES = 8
"""Probings of each environment from which the context is regressed."""
EPISODES = 4
"""Episodes of everything that is played: half of them choose the best of many, the others say what it is worth."""


class Measured(NamedTuple):
    """Mean returns [E] in the training environments, and what is behind them."""

    own: np.ndarray  # the best finished policy that was trained there
    hindsight: np.ndarray  # the best finished policy of all
    decoded: np.ndarray  # the embedding of the best own policy, decoded
    known: np.ndarray  # the best of the sampled embeddings
    ranked: np.ndarray  # the one of them that W rates highest
    optimal: np.ndarray  # W's optimum under the environment's usual z_d
    adapted: np.ndarray  # W's optimum under the inferred z_d: PD-VF itself
    sampled: np.ndarray  # [N, E] returns of the sampled embeddings
    predicted: np.ndarray  # [N, E] W's predictions of them
    lowest: np.ndarray  # the lowest return that W was trained on, from which shares are counted
    nearness: np.ndarray  # [E] |cosine| of the optimum and the nearest embedding of a training policy
    z_d: np.ndarray  # [E, P, d]


class Finding(NamedTuple):
    """One of the five."""

    name: str
    number: float
    meaning: str
    loss: float  # of return, on average over the training environments


def effort(problem: Problem, policies: Actor) -> str:
    """What `measure` is going to play, for people who wait for it."""
    environments = len(problem.contexts)
    played = policies.log_std.shape[1] * policies.log_std.shape[2] + SAMPLE + environments + 2
    steps = played * environments * EPISODES * problem.engine.family.horizon
    return (
        f"{played} policies and embeddings, {EPISODES} episodes each in {environments} training environments: "
        f"up to {steps / 1e6:.3g} million environment steps"
    )


def measure(problem: Problem, policies: Actor, adapter: Adapter, key: Array) -> Measured:
    """Plays what there is in the training environments; `policies` [K, E, seeds, ...], `adapter` of one model."""
    played = jax.jit(lambda p, a: _measure(problem, p, a, key))(policies, adapter)
    return Measured(**{name: np.asarray(x) for name, x in played.items()})


def _measure(problem: Problem, policies: Actor, adapter: Adapter, key: Array) -> dict[str, Array]:
    engine, body = problem.engine, adapter.body
    contexts = jnp.asarray(problem.contexts)
    count, seeds, kept = contexts.shape[0], policies.log_std.shape[2], policies.log_std.shape[0]
    keys = jax.random.split(key, 8)
    repeated = jnp.repeat(contexts, EPISODES, axis=0)

    def halves(returns: Array) -> tuple[Array, Array]:
        """[..., E * J] to means [..., E] of the episodes that choose and of those that count."""
        each = returns.reshape(*returns.shape[:-1], count, EPISODES)
        return jnp.mean(each[..., : EPISODES // 2], axis=-1), jnp.mean(each[..., EPISODES // 2 :], axis=-1)

    finished = finished_policies(policies)
    chosen_by, played = halves(transfer(engine, repeated, finished, keys[0]))  # [E * seeds, E]
    places = jnp.arange(count)
    best = jnp.argmax(chosen_by.reshape(count, seeds, count)[places, :, places], axis=1)  # seed of each environment

    bank = adapter.train_z_pi.reshape(-1, count, adapter.train_z_pi.shape[-1])  # [C, E, e], finished policies last
    rows = ((kept - 1) * count + places) * seeds + best
    experts = bank[rows, places]  # [E, e]
    drawn = adapter.train_z_pi[jax.random.randint(keys[1], (SAMPLE,), 0, adapter.train_z_pi.shape[0])]
    sample = jnp.concatenate([experts, drawn])
    probed = body.begin(engine, repeated, keys[2])

    def play(z_pi: Array) -> tuple[Array, Array]:
        """Mean returns [E] of embeddings [E * J, e], each in its own episode."""
        return halves(body.finish(engine, repeated, probed, z_pi, keys[3])[0])

    def play_everywhere(z_pi: Array) -> tuple[Array, Array]:
        """The same of one embedding [e]."""
        return play(jnp.tile(z_pi, (repeated.shape[0], 1)))

    known_by, sampled = jax.lax.map(play_everywhere, sample, batch_size=32)
    s0, z_d = (x.reshape(count, EPISODES, -1)[:, 0] for x in (probed.s0, probed.z_d))
    predicted, rated = (
        jax.vmap(lambda z, say=say: jax.vmap(say, in_axes=(0, None, 0))(s0, z, z_d))(sample)
        for say in (adapter.predict, adapter.value_of)
    )
    inferred, _ = jax.vmap(adapter.choose)(probed.s0, probed.z_d)
    usual, _ = jax.vmap(adapter.choose)(probed.s0, jnp.repeat(adapter.train_z_d, EPISODES, axis=0))
    nearness = jnp.max(jnp.abs(inferred @ adapter.train_z_pi.T), axis=1)
    noisy = body.begin(engine, jnp.repeat(contexts, PROBES, axis=0), keys[4], PROBE_NOISE).z_d
    return {
        "own": played[places * seeds + best, places],
        "hindsight": played[jnp.argmax(chosen_by, axis=0), places],
        "decoded": sampled[:count][places, places],
        "known": sampled[jnp.argmax(known_by, axis=0), places],
        "ranked": sampled[jnp.argmax(rated, axis=0), places],
        "optimal": play(usual)[1],
        "adapted": play(inferred)[1],
        "sampled": sampled,
        "predicted": predicted,
        "lowest": jnp.broadcast_to(adapter.scale.low, (count,)),
        "nearness": jnp.mean(nearness.reshape(count, EPISODES), axis=1),
        "z_d": noisy.reshape(count, PROBES, -1),
    }


def findings(family: Family, contexts: np.ndarray, measured: Measured) -> list[Finding]:
    """The five numbers, in the order in which a return is lost."""
    m = measured
    ranks = [rank_correlation(p, r) for p, r in zip(m.predicted.T, m.sampled.T, strict=True)]
    known = [rank for rank in ranks if rank is not None]
    above = max(float((m.own - m.lowest).mean()), 1e-9)
    numbers = {
        "experts": (m.own.mean(), m.hindsight - m.own),
        "decoder": ((m.decoded - m.lowest).mean() / above, m.hindsight - m.known),
        "ranking": (np.mean(known) if known else np.nan, m.known - m.ranked),
        "optimum": (m.nearness.mean(), m.ranked - m.optimal),
        "dynamics": (overall(left_out_r2(family.context_names, contexts, m.z_d)), m.optimal - m.adapted),
    }
    return [Finding(name, float(n), MEANING[name], float(loss.mean())) for name, (n, loss) in numbers.items()]


def bottleneck(found: list[Finding]) -> Finding:
    """The one that costs the most return."""
    return max(found, key=lambda finding: finding.loss)


def table(found: list[Finding], measured: Measured) -> str:
    """For people."""
    lines = [f"  {'what':<10} {'number':>8} {'costs':>9}  meaning"]
    for finding in found:
        lines.append(f"  {finding.name:<10} {finding.number:>8.3f} {finding.loss:>9.3g}  {finding.meaning}")
    worst = bottleneck(found)
    lines += [
        f"  best policy in hindsight {measured.hindsight.mean():.4g}, PD-VF {measured.adapted.mean():.4g}, both in the "
        "training environments; costs are in units of return",
        f"  bottleneck: {worst.name} ({ADVICE[worst.name]})",
    ]
    return "\n".join(lines)


MEANING = {
    "experts": "return of the best policy of each environment in it",
    "decoder": "return of that policy's embedding, decoded, as a share of its own (0: the worst that W knows)",
    "ranking": "rank correlation of W's predictions and returns over policies",
    "optimum": "|cosine| of W's optimum and the nearest embedding of a training policy",
    "dynamics": "R2 of the hidden context read off z_d, in environments left out",
}
ADVICE = {
    "experts": "train policies longer or with more seeds: others beat them in their own environment",
    "decoder": "train the policy autoencoder and the decoder's aggregation longer",
    "ranking": "give W more data or members, or a higher power of returns",
    "optimum": "play more optima while W learns (more stages or probes), or choose among known embeddings",
    "dynamics": "train the dynamics autoencoder longer, or probe for more steps",
}


def as_data(found: list[Finding], measured: Measured) -> dict[str, Any]:
    """Everything for JSON."""
    means = {name: [round(float(v), 6) for v in x] for name, x in measured._asdict().items() if x.ndim == 1}
    return {
        "findings": [finding._asdict() for finding in found],
        "bottleneck": bottleneck(found).name,
        "training_environments": means,
    }
