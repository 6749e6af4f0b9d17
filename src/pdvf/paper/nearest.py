"""NN: the policy of the nearest training environment acts (section 4.3)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.engines.base import Engine
from pdvf.engines.rollout import Feedback, play
from pdvf.paper.adapter import Adapter
from pdvf.paper.prober import Probed
from pdvf.rl.networks import Actor


def nearest(z_d: Array, train_z_d: Array) -> Array:
    """Index [n] of the training environment whose embedding in train_z_d [E, d] is nearest to z_d [n, d]."""
    return jnp.argmin(jnp.sum((z_d[:, None] - train_z_d[None]) ** 2, axis=-1), axis=-1)


def play_nearest(
    engine: Engine, contexts: Array, adapter: Adapter, probed: Probed, policies: Actor, key: Array
) -> Array:
    """Returns [n] when, after probing, the policy [E, ...] of the nearest training environment acts to the end."""
    chosen = jax.tree.map(lambda x: x[nearest(probed.z_d, adapter.train_z_d)], policies)

    def act(memory: Any, observation: Array, feedback: Feedback, key: Array) -> tuple[Array, Any]:
        del feedback, key
        return jax.vmap(lambda actor, s: actor(s))(chosen, observation), memory

    steps = engine.family.horizon - engine.family.probe_steps
    return play(engine, contexts, probed.episodes, act, key, steps, record=False)[0].returns
