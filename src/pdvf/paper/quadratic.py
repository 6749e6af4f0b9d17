"""W(s0, z_pi, z_d) = z_pi' A z_pi with A = L L', and its closed-form optimum (section 3.4, appendix A.2)."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array, Scaler


class QuadraticValue(eqx.Module):
    """One quadratic form: a network from (s0, z_d) to a lower triangular matrix L."""

    observation: Scaler
    first: eqx.nn.Linear
    second: eqx.nn.Linear
    third: eqx.nn.Linear

    def __init__(self, observation: Scaler, z_d: int, z_pi: int, hidden: int, key: Array):
        keys = jax.random.split(key, 3)
        self.observation = observation
        self.first = eqx.nn.Linear(observation.centre.shape[-1] + z_d, hidden, key=keys[0])
        self.second = eqx.nn.Linear(hidden, hidden, key=keys[1])
        self.third = eqx.nn.Linear(hidden, z_pi * z_pi, key=keys[2])

    def lower(self, s0: Array, z_d: Array) -> Array:
        """L [e, e] for an initial state [o] and a dynamics embedding [d]."""
        x = jnp.concatenate([jax.lax.stop_gradient(self.observation).scale(s0), z_d])
        x = self.third(jnp.tanh(self.second(jax.nn.relu(self.first(x)))))
        size = round(x.shape[0] ** 0.5)
        return jnp.tril(x.reshape(size, size))

    def matrix(self, s0: Array, z_d: Array) -> Array:
        """A [e, e], positive semi-definite."""
        lower = self.lower(s0, z_d)
        return lower @ lower.T

    def __call__(self, s0: Array, z_pi: Array, z_d: Array) -> Array:
        """Predicted return [], in the scale W was trained on."""
        return jnp.sum((self.lower(s0, z_d).T @ z_pi) ** 2)


def mean_matrix(members: QuadraticValue, s0: Array, z_d: Array) -> Array:
    """A [e, e] of several quadratic forms [M, ...] together: their mean is a quadratic form again."""
    return jnp.mean(eqx.filter_vmap(lambda member: member.matrix(s0, z_d))(members), axis=0)


def mean_matrices(members: QuadraticValue, s0: Array, z_d: Array) -> Array:
    """The same for several dynamics embeddings [n, d] at once, [n, e, e]: one product instead of many small ones."""
    lower = eqx.filter_vmap(lambda member: jax.vmap(lambda z: member.lower(s0, z))(z_d))(members)  # [M, n, e, e]
    return jnp.einsum("mnij,mnkj->nik", lower, lower) / lower.shape[0]


def optimal_policy_embedding(matrix: Array) -> tuple[Array, Array]:
    """The unit vector z [e] that maximises z' A z, and that maximum: the top eigenpair of A [e, e].

    A is symmetric and positive semi-definite, so its eigenvectors are the singular vectors the paper takes.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors[:, -1], values[-1]
