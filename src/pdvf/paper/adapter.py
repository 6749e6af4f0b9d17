"""What a user deploys: a trained PD-VF that adapts within one episode (section 3.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.engines.base import Engine
from pdvf.engines.rollout import Transitions
from pdvf.paper.aggregate import ReturnScale
from pdvf.paper.prober import Body
from pdvf.paper.quadratic import QuadraticValue, mean_matrices, optimal_policy_embedding

ANCHORS = 4
"""Training environments that A(s0, z_d) is held by: more weigh next to nothing and cost time."""


class Adapter(eqx.Module):
    """A trained PD-VF: probe, encoder, decoder, value function and what they need to know of their training."""

    body: Body
    value: QuadraticValue  # [M, ...]
    scale: ReturnScale
    train_z_d: Array  # [E, d] dynamics embedding of each training environment
    train_z_pi: Array  # [B, e] embeddings of the training policies
    anchor: float = eqx.field(static=True, default=0.0)
    anchor_width: float = eqx.field(static=True, default=0.3)

    def matrix(self, s0: Array, z_d: Array) -> Array:
        """A(s0, z_d) [e, e], held by its values in the training environments near z_d.

        A network may be wild between environments it has seen. A share `anchor` of A is the mean of A over the
        training environments nearest to z_d, weighted by a Gaussian of width `anchor_width`: a quadratic form again.
        """
        if self.anchor == 0.0:
            return mean_matrices(self.value, s0, z_d[None])[0]
        distance = jnp.sum((self.train_z_d - z_d) ** 2, axis=-1)
        minus, nearest = jax.lax.top_k(-distance, min(ANCHORS, distance.shape[0]))
        weights = jax.nn.softmax(minus / (2 * self.anchor_width**2))
        matrices = mean_matrices(self.value, s0, jnp.concatenate([z_d[None], self.train_z_d[nearest]]))
        return (1 - self.anchor) * matrices[0] + self.anchor * jnp.einsum("e,eij->ij", weights, matrices[1:])

    def predict(self, s0: Array, z_pi: Array, z_d: Array) -> Array:
        """W(s0, z_pi, z_d) [] in units of return, for s0 [o], z_pi [e], z_d [d]: no more than any in training."""
        return self._units(z_d).unscale(jnp.minimum(self.value_of(s0, z_pi, z_d), 1.0))

    def value_of(self, s0: Array, z_pi: Array, z_d: Array) -> Array:
        """W(s0, z_pi, z_d) [] in its own units, where nothing bounds it: for ranking."""
        return z_pi @ self.matrix(s0, z_d) @ z_pi

    def choose(self, s0: Array, z_d: Array) -> tuple[Array, Array]:
        """The OPE [e] for s0 [o] and z_d [d], and the return it is expected to get: no more than any in training.

        Its sign is arbitrary and does not matter: the decoder plays z and -z alike.
        """
        z_pi, value = optimal_policy_embedding(self.matrix(s0, z_d))
        return z_pi, self._units(z_d).unscale(jnp.minimum(value, 1.0))

    def out_of_distribution(self, z_d: Array) -> Array:
        """Distance of z_d [d] to the nearest of a training environment, in units of the largest among these []."""
        known = self.train_z_d
        if known.shape[0] == 1:
            return jnp.min(jnp.linalg.norm(known - z_d, axis=-1)) / 2.0  # no two unit vectors are farther apart
        apart = jnp.linalg.norm(known[:, None] - known, axis=-1) + jnp.diag(jnp.full(known.shape[0], jnp.inf))
        familiar = jnp.maximum(jnp.max(jnp.min(apart, axis=1)), 1e-6)
        return jnp.min(jnp.linalg.norm(known - z_d, axis=-1)) / familiar

    def _units(self, z_d: Array) -> ReturnScale:
        """Where every training environment has a range of returns of its own, that of the nearest."""
        return self.scale.at(nearest(z_d, self.train_z_d))


def nearest(z_d: Array, train_z_d: Array) -> Array:
    """Index [] of the training environment whose embedding in train_z_d [E, d] is nearest to z_d [d]."""
    return jnp.argmin(jnp.sum((train_z_d - z_d) ** 2, axis=-1))


Select = Callable[[Adapter, Array, Array], tuple[Array, Array]]
"""How a policy embedding is chosen once the dynamics are known, without touching the environment: from an adapter,
s0 [o] and z_d [d] to z_pi [e] and the return [] expected of it."""


closed_form: Select = Adapter.choose
"""The paper's choice: the top eigenvector of A(s0, z_d)."""


class Adaptation(NamedTuple):
    """n adapted episodes."""

    returns: Array  # [n]
    predicted: Array  # [n]
    z_d: Array  # [n, d]
    z_pi: Array  # [n, e]
    steps: Transitions  # [T, n, ...]


def adapt_episodes(engine: Engine, adapter: Adapter, contexts: Array, probe_key: Array, play_key: Array) -> Adaptation:
    """One honest episode for each context [n, c]: probe, infer, select, act to the end; probing steps count."""
    probed = adapter.body.begin(engine, contexts, probe_key)
    z_pi, predicted = jax.vmap(adapter.choose)(probed.s0, probed.z_d)
    returns, rest = adapter.body.finish(engine, contexts, probed, z_pi, play_key, record=True)
    steps = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), probed.steps, rest)
    return Adaptation(returns, predicted, probed.z_d, z_pi, steps)
