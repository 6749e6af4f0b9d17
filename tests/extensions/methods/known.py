"""A rule for choosing z_pi in one file: W chooses among the embeddings of the training policies."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.methods.base import AtOnce, Method
from pdvf.methods.pdvf import value_agents
from pdvf.paper.adapter import Adapter
from pdvf.paper.untrained import adapter


def best_known(adapter: Adapter, s0: Array, z_d: Array) -> tuple[Array, Array]:
    values = jax.vmap(lambda z_pi: adapter.predict(s0, z_pi, z_d))(adapter.train_z_pi)
    best = jnp.argmax(values)
    return adapter.train_z_pi[best], values[best]


KNOWN = Method(
    "known",
    "PD-VF that chooses among known policies",
    lambda problem, inputs, key: AtOnce("known", lambda: value_agents(inputs["adapter"], best_known)),
    ("adapter",),
    lambda problem: value_agents(adapter(problem), best_known),
)
