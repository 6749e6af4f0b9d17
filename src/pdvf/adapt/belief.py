"""The belief about the hidden code, from the first step of an episode to the last.

The model of the dynamics is linear in the code with Gaussian noise, so the posterior is Gaussian and every step adds to
its precision: a Kalman filter for something that stays as it is. Residuals that the noise cannot explain count less, as
in Huber's estimator.

Dynamics are out of the distribution of training where the code lies beyond those of training as surely as the belief
knows, or where no code explains what happens. The first adds up evidence as the belief does: an agent that has got
stuck, where nothing surprises any more, does not forget why.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pdvf.adapt.model import DynamicsModel
from pdvf.core.arrays import Array

PRIOR_STD = 0.7
"""Of each number of the code before the first step; training codes lie in the unit ball."""
EDGE = 3.0
"""Standard deviations beyond which a residual counts less."""
LARGEST = 1.5
"""Bound of what is told of the mean: the belief cannot be farther out than environments were made for."""
FAMILIAR = 1.1
"""Norm up to which codes are like those of training, which lie in the unit ball."""
FEWEST = 8
"""Residuals are a mean over at least so many steps: one or two say little."""
SURE = 2.0
"""Standard deviations by which the code lies farther in than the mean, at worst."""


class Belief(NamedTuple):
    """A Gaussian over the code, by precision [K, K] and precision times mean [K]; and the residuals so far."""

    precision: Array
    information: Array
    surprise: Array  # [] mean squared normalised residual, summed over steps
    steps: Array  # []

    @classmethod
    def prior(cls, size: int) -> Belief:
        """Before the first step."""
        return cls(jnp.eye(size) / PRIOR_STD**2, jnp.zeros(size), jnp.zeros(()), jnp.zeros(()))

    @property
    def covariance(self) -> Array:
        """[K, K]."""
        return inverse(self.precision)

    @property
    def mean(self) -> Array:
        """[K]."""
        return self.covariance @ self.information

    @property
    def novelty(self) -> Array:
        """Mean squared normalised residual per step []: about 1 where the model explains what happens."""
        return self.surprise / jnp.maximum(self.steps, FEWEST)

    @property
    def reach(self) -> Array:
        """How far from the centre the code is at least []: the mean's norm less `SURE` standard deviations along it."""
        covariance = self.covariance
        mean = covariance @ self.information
        norm = jnp.linalg.norm(mean)
        along = mean / jnp.maximum(norm, 1e-6)
        return norm - SURE * jnp.sqrt(along @ covariance @ along)

    def features(self) -> Array:
        """What a policy is told [2 K]: the mean, and the standard deviations as shares of the prior's."""
        covariance = self.covariance
        std = jnp.sqrt(jnp.diagonal(covariance)) / PRIOR_STD
        return jnp.concatenate([jnp.clip(covariance @ self.information, -LARGEST, LARGEST), std])


def update(model: DynamicsModel, belief: Belief, observation: Array, action: Array, next_observation: Array) -> Belief:
    """The belief after a step from one observation [o] to the next with a scaled action [a]."""
    predicted = model.predict(observation, action)
    change = model.scaled_change(observation, next_observation) - predicted.mean
    h, covariance = predicted.sensitivity, belief.covariance
    spread = jnp.sqrt(predicted.variance + jnp.einsum("ok,kl,ol->o", h, covariance, h))
    residual = (change - h @ (covariance @ belief.information)) / spread
    weight = jnp.minimum(1.0, EDGE / jnp.maximum(jnp.abs(residual), 1e-6)) / predicted.variance
    weighted = h.T * weight
    return Belief(
        belief.precision + weighted @ h,
        belief.information + weighted @ change,
        belief.surprise + jnp.mean(jnp.minimum(residual**2, EDGE**4)),
        belief.steps + 1.0,
    )


def out_of_distribution(model: DynamicsModel, belief: Belief) -> Array:
    """How unlike training an episode is []: above 1 beyond the codes of training, or where no code explains it."""
    return jnp.maximum(belief.reach / FAMILIAR, belief.novelty / model.novelty_threshold)


def inverse(matrix: Array) -> Array:
    """The inverse of a small symmetric positive definite matrix [k, k], by the sweep operator.

    Libraries for linear algebra take far longer for many matrices of this size.
    """
    for i in range(matrix.shape[-1]):
        row = matrix[i] / matrix[i, i]
        swept = matrix - jnp.outer(matrix[:, i], row)
        swept = swept.at[i].set(row).at[:, i].set(row)
        matrix = swept.at[i, i].set(-1.0 / matrix[i, i])
    return -matrix


def log_density(belief: Belief, code: Array) -> Array:
    """Log density of the belief at a code [K]."""
    apart = code - belief.mean
    _, log_determinant = jnp.linalg.slogdet(belief.precision)
    return 0.5 * (log_determinant - apart @ belief.precision @ apart - code.shape[0] * jnp.log(2 * jnp.pi))


def along(model: DynamicsModel, observation: Array, action: Array, next_observation: Array, first: Array) -> Belief:
    """Beliefs [T, ...] after the steps [T, ...] of one stream of episodes; a new episode begins where `first`."""
    size = model.codes.shape[-1]

    def step(belief: Belief, row: tuple[Array, ...]) -> tuple[Belief, Belief]:
        observation, action, next_observation, first = row
        fresh = jax.tree.map(lambda new, old: jnp.where(first, new, old), Belief.prior(size), belief)
        after = update(model, fresh, observation, action, next_observation)
        return after, after

    return jax.lax.scan(step, Belief.prior(size), (observation, action, next_observation, first))[1]
