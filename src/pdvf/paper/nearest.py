"""NN: the policy of the nearest training environment acts (section 4.3)."""

from __future__ import annotations

import jax.numpy as jnp

from pdvf.core.arrays import Array


def nearest(z_d: Array, train_z_d: Array) -> Array:
    """Index [n] of the training environment whose embedding in train_z_d [E, d] is nearest to z_d [n, d]."""
    return jnp.argmin(jnp.sum((z_d[:, None] - train_z_d[None]) ** 2, axis=-1), axis=-1)
