"""Everything that plays an episode except the choice of a policy: probe, dynamics encoder, policy decoder."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.engines.base import Engine
from pdvf.engines.rollout import Episodes, Feedback, Transitions, acting, play, play_from_start
from pdvf.paper.dynamics import DynamicsAutoencoder
from pdvf.paper.policy import PolicyDecoder
from pdvf.rl.networks import Actor


class Probed(NamedTuple):
    """n episodes after their N_d probing steps."""

    episodes: Episodes
    s0: Array  # [n, o]
    z_d: Array  # [n, d]
    steps: Transitions  # [N_d, n, ...]


class Scores(NamedTuple):
    """Z policy embeddings, each played in E environments."""

    z_pi: Array  # [Z, e]
    s0: Array  # [Z, E, o]
    z_d: Array  # [Z, E, d]
    returns: Array  # [Z, E]
    home: Array  # [Z] the environment an embedding is meant for, where there is one


class Body(eqx.Module):
    """Probes with one fixed policy, infers z_d, and acts as a policy embedding says."""

    probe: Actor
    dynamics: DynamicsAutoencoder
    decoder: PolicyDecoder

    def begin(self, engine: Engine, contexts: Array, key: Array, noise: float | None = None) -> Probed:
        """Starts an episode for each context [n, c] and spends its first N_d steps on probing."""
        act, count = acting(self.probe, noise), engine.family.probe_steps
        episodes, steps = play_from_start(engine, contexts, act, key, count)
        return Probed(episodes, steps.observation[0], jax.vmap(self.dynamics.encode, in_axes=1)(steps), steps)

    def finish(
        self, engine: Engine, contexts: Array, probed: Probed, z_pi: Array, key: Array, record: bool = False
    ) -> tuple[Array, Any]:
        """Plays on as z_pi [n, e] until the end: returns [n] with the probing steps counted in, and steps as `play`."""

        def act(memory: Any, observation: Array, feedback: Feedback, key: Array) -> tuple[Array, Any]:
            return jax.vmap(self.decoder)(observation, z_pi), memory

        steps = engine.family.horizon - engine.family.probe_steps
        episodes, made = play(engine, contexts, probed.episodes, act, key, steps, record)
        return episodes.returns, made

    def score(self, engine: Engine, contexts: Array, z_pi: Array, key: Array, noise: float, chunk: int = 512) -> Scores:
        """Plays every z_pi [Z, e] in every context [E, c], a chunk of embeddings at a time."""

        def one(row: tuple[Array, Array]) -> Scores:
            z, key = row
            probe_key, play_key = jax.random.split(key)
            probed = self.begin(engine, contexts, probe_key, noise)
            tiled = jnp.tile(z, (contexts.shape[0], 1))
            returns, _ = self.finish(engine, contexts, probed, tiled, play_key)
            return Scores(z, probed.s0, probed.z_d, returns, jnp.zeros((), jnp.int32))

        keys = jax.random.split(key, z_pi.shape[0])
        return jax.lax.map(one, (z_pi, keys), batch_size=min(chunk, z_pi.shape[0]))
