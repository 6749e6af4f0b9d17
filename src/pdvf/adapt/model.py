"""Codes of environments, and a model of the dynamics that is linear in them.

The change of an observation in environment e is modelled as

    o' - o = g(o, a) + G(o, a) y_e + noise,     noise ~ N(0, diag(sigma(o, a)^2))

and the change of the simulator's state, between environments e and e', as E(o, a) (y_e' - y_e). The codes y_e, of up to
K numbers, are learned with the rest: contexts are not used. Where the simulator can be put into any state, codes come
from *paired* steps, the same action in the same state of two environments: their difference has nothing but the effect
in it. Elsewhere they come from what g leaves unexplained.

Inside the networks a code has any scale and direction (`raw_codes`). `normalise` finds how many numbers it needs and
the smallest ellipsoid around the training codes, and maps it to the unit ball: that is the code everybody else sees.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Scaler
from pdvf.core.networks import FeedForward

FARTHEST = 8.0
"""Standard deviations from the mean beyond which an input counts as that far."""
OUTLIER = 20.0
"""Standard deviations of a target beyond which it counts as that far: a contact can do anything."""
LOG_STD = (-7.0, 3.0)
"""Bounds of the noise, in units of the spread of changes."""
NEGLIGIBLE = 0.01
"""Share of the effect's variance for which a code does not get another number."""


class Rows(NamedTuple):
    """Steps [T, n, ...] of n streams of episodes in training environments, and what pairs of environments make of them.

    Without pairs `other` is `environment`, `difference` is 0 and both following observations are the same.
    """

    observation: Array
    action: Array  # scaled
    next_observation: Array
    environment: Array  # int
    first: Array  # whether an episode begins here
    last: Array  # whether the task ended with this step
    other: Array  # int
    difference: Array  # [T, n, m] of the state's numbers: in `other` less in `environment`
    other_observation: Array  # that follows in `other`


class Prediction(NamedTuple):
    """What a model says of a step, in units of the spread of changes."""

    mean: Array  # [o] at code 0
    sensitivity: Array  # [o, K] to the code
    variance: Array  # [o] of the noise


class DynamicsModel(eqx.Module):
    """Networks, codes of the training environments [E, K], and how the two fit together."""

    observation: Scaler
    change: Scaler
    difference: Array  # [m] spread of differences
    prediction_net: FeedForward
    effect_net: FeedForward
    raw_codes: Array  # [E, K]
    codes: Array  # [E, K] inside the unit ball; numbers that are not needed are 0
    origin: Array  # [K] raw code of code 0
    frame: Array  # [K, K] raw code = origin + frame @ code
    temperature: Array  # [] factor of the noise's variance that the belief uses
    novelty_threshold: Array  # [] novelty beyond which an episode is called unlike training

    @property
    def code_size(self) -> int:
        """K, the most numbers that a code may have."""
        return self.codes.shape[-1]

    def predict(self, observation: Array, action: Array) -> Prediction:
        """What happens in observation [o] after the scaled action [a], for any code."""
        mean, sensitivity, log_std = self.raw_prediction(observation, action)
        variance = self.temperature * jnp.exp(2 * log_std)
        return Prediction(mean + sensitivity @ self.origin, sensitivity @ self.frame, variance)

    def effect(self, observation: Array, action: Array) -> Array:
        """Change of the state's numbers with the code [m, K]."""
        return (self.raw_effect(observation, action) @ self.frame) * self.difference[:, None]

    def raw_prediction(self, observation: Array, action: Array) -> tuple[Array, Array, Array]:
        """g [o], G [o, K] and log sigma [o], scaled, for raw codes."""
        o, k = observation.shape[-1], self.raw_codes.shape[-1]
        out = self.prediction_net(self._inputs(observation, action))
        mean, sensitivity, log_std = jnp.split(out, [o, o + o * k])
        return mean, sensitivity.reshape(o, k), jnp.clip(log_std, *LOG_STD)

    def raw_effect(self, observation: Array, action: Array) -> Array:
        """E [m, K], scaled, for raw codes."""
        return self.effect_net(self._inputs(observation, action)).reshape(-1, self.raw_codes.shape[-1])

    def _inputs(self, observation: Array, action: Array) -> Array:
        scaler = jax.lax.stop_gradient(self.observation)
        return jnp.concatenate([jnp.clip(scaler.scale(observation), -FARTHEST, FARTHEST), action])

    def scaled_change(self, observation: Array, next_observation: Array) -> Array:
        """The change of an observation [o], scaled and without outliers."""
        scaler = jax.lax.stop_gradient(self.change)
        return jnp.clip(scaler.scale(next_observation - observation), -OUTLIER, OUTLIER)


def make_model(
    observation: int, action: int, state: int, environments: int, code: int, width: int, key: Array
) -> DynamicsModel:
    """An untrained model, whose codes are all alike but for some noise."""
    prediction_key, effect_key, code_key = jax.random.split(key, 3)
    inputs = observation + action
    outputs = observation * (2 + code)
    same = lambda size: Scaler(jnp.zeros(size), jnp.ones(size))  # noqa: E731
    raw = 0.5 * jax.random.normal(code_key, (environments, code))
    return DynamicsModel(
        same(observation),
        same(observation),
        jnp.ones(state),
        FeedForward((inputs, width, width, outputs), prediction_key, jax.nn.silu),
        FeedForward((inputs, width, width, state * code), effect_key, jax.nn.silu),
        raw,
        jnp.zeros_like(raw),
        jnp.zeros(code),
        jnp.zeros((code, code)),
        jnp.ones(()),
        jnp.ones(()),
    )


def rescale(model: DynamicsModel, rows: Rows) -> DynamicsModel:
    """A model whose inputs and outputs are of order one on these rows."""
    weight = 1.0 - rows.last.astype(jnp.float32)
    change = Scaler.from_data(rows.next_observation - rows.observation, weight)
    spread = jnp.sqrt(jnp.mean(rows.difference**2, axis=(0, 1)))
    spread = jnp.maximum(spread, 1e-4 * jnp.max(spread) + 1e-8)
    observation = Scaler.from_data(rows.observation, jnp.ones_like(weight))
    # What hardly varies is not to be blown up: its noise would be the largest input.
    width = jnp.maximum(observation.width, 1e-3)
    new = Scaler(observation.centre, width), Scaler(change.centre, jnp.maximum(change.width, 1e-5)), spread
    return eqx.tree_at(lambda m: (m.observation, m.change, m.difference), model, new)


def loss(model: DynamicsModel, rows: Rows, paired: bool) -> Array:
    """Negative log likelihood of changes, plus the squared error of paired differences; rows are [B, ...]."""
    codes = jax.lax.stop_gradient(model.raw_codes) if paired else model.raw_codes
    mean, sensitivity, log_std = jax.vmap(model.raw_prediction)(rows.observation, rows.action)
    target = jax.vmap(model.scaled_change)(rows.observation, rows.next_observation)
    predicted = mean + jnp.einsum("nok,nk->no", sensitivity, codes[rows.environment])
    residual = (target - predicted) * jnp.exp(-log_std)
    # Where the model is still bad its noise is large, and the likelihood would hardly learn there: weighing by the
    # standard deviation keeps it learning (beta-NLL, Seitzer et al. 2022, with beta 1/2).
    weight = jax.lax.stop_gradient(jnp.exp(log_std))
    likelihood = jnp.mean(weight * (huber(residual, 3.0) + log_std), axis=-1)
    total = jnp.sum(jnp.where(rows.last, 0.0, likelihood)) / jnp.sum(~rows.last)
    if paired:
        # The likelihood sees the effect beside the error of g, which is larger; here g cancels.
        apart = jax.vmap(model.scaled_change)(rows.observation, rows.other_observation) - target
        size = jnp.mean(jnp.abs(apart), axis=0)
        missed = jnp.einsum("nok,nk->no", sensitivity, codes[rows.other] - codes[rows.environment]) - apart
        seen = huber(missed / jnp.maximum(size, 1e-6), 1.0)
        total = total + jnp.mean(huber(_pair_error(model, rows), 1.0)) + jnp.mean(seen)
    return total


def _pair_error(model: DynamicsModel, rows: Rows) -> Array:
    effect = jax.vmap(model.raw_effect)(rows.observation, rows.action)
    apart = model.raw_codes[rows.other] - model.raw_codes[rows.environment]
    return jnp.einsum("nmk,nk->nm", effect, apart) - _pair_target(model, rows)


def _pair_target(model: DynamicsModel, rows: Rows) -> Array:
    target = rows.difference / jax.lax.stop_gradient(model.difference)
    return jnp.clip(jnp.where(jnp.isfinite(target), target, 0.0), -OUTLIER, OUTLIER)


def huber(x: Array, edge: float) -> Array:
    """Half the square of x, growing linearly beyond the edge."""
    size = jnp.minimum(jnp.abs(x), edge)
    return size * (jnp.abs(x) - 0.5 * size)


class Effects(NamedTuple):
    """What `normalise` is told of N held-out steps: effects [N, m, K] of raw codes, and which codes are compared."""

    effect: Array
    minuend: Array  # [N] environment
    subtrahend: Array  # [N] environment, or -1 for the mean of all codes
    target: Array  # [N, m]

    def predicted(self, effect: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """What effects [N, m, k] of codes [E, k] make of the target, in NumPy."""
        subtracted = np.where(np.asarray(self.subtrahend)[:, None] < 0, 0.0, codes[self.subtrahend])
        return np.einsum("nmk,nk->nm", effect, codes[self.minuend] - subtracted)


def effects(model: DynamicsModel, rows: Rows, paired: bool) -> Effects:
    """The effects on rows [N, ...], for `normalise`."""
    if paired:
        effect = jax.vmap(model.raw_effect)(rows.observation, rows.action)
        return Effects(effect, rows.other, rows.environment, _pair_target(model, rows))
    mean, sensitivity, _ = jax.vmap(model.raw_prediction)(rows.observation, rows.action)
    target = jax.vmap(model.scaled_change)(rows.observation, rows.next_observation)
    left = target - mean - sensitivity @ jnp.mean(model.raw_codes, axis=0)
    return Effects(sensitivity, rows.environment, jnp.full_like(rows.environment, -1), left)


class Frame(NamedTuple):
    """How raw codes become codes, in NumPy, and of how many numbers."""

    codes: np.ndarray
    origin: np.ndarray
    frame: np.ndarray
    rank: int


def normalise(raw: np.ndarray, seen: Effects, before: np.ndarray) -> Frame:
    """Codes of as few numbers as explain the effect, in the unit ball and turned towards those `before` [E, K]."""
    raw, before = np.asarray(raw, np.float64), np.asarray(before, np.float64)
    effect, target = np.asarray(seen.effect, np.float64), np.asarray(seen.target, np.float64)
    environments, size = raw.shape
    mean = raw.mean(0)
    metric = np.einsum("nmi,nmj->ij", effect, effect) / len(effect) + 1e-9 * np.eye(size)
    root = np.linalg.cholesky(metric)
    _, _, directions = np.linalg.svd((raw - mean) @ root, full_matrices=False)
    principal = (raw - mean) @ root @ directions.T  # [E, r] in units of the effect
    back = np.linalg.solve(root.T, directions.T)  # raw = mean + back @ principal
    explained = np.zeros(size)  # R^2 of the effect with 1, 2, ... numbers a code
    spread = np.sum(target**2) + 1e-12
    for k in range(1, size + 1):
        kept = principal[:, :k] @ back[:, :k].T
        explained[k - 1] = 1 - np.sum((seen.predicted(effect, kept) - target) ** 2) / spread
    most = min(environments - 1, size)
    rank = 1 + int(np.argmax(explained[:most] > explained[:most].max() - NEGLIGIBLE))
    centre, shape = enclosing_ellipsoid(principal[:, :rank])
    codes, frame = np.zeros((environments, size)), np.zeros((size, size))
    codes[:, :rank] = (principal[:, :rank] - centre) @ shape
    frame[:, :rank] = back[:, :rank] @ np.linalg.inv(shape)
    if np.any(before):
        u, _, vt = np.linalg.svd(codes.T @ before)
        codes, frame = codes @ (u @ vt), frame @ (u @ vt)
    return Frame(codes, mean + back[:, :rank] @ centre, frame, rank)


def enclosing_ellipsoid(points: np.ndarray, tolerance: float = 1e-3) -> tuple[np.ndarray, np.ndarray]:
    """Centre [k] and symmetric matrix A [k, k] of the smallest ellipsoid |A (x - centre)| <= 1 around points [n, k].

    Khachiyan's algorithm; the ellipsoid is scaled so that no point lies outside.
    """
    n, k = points.shape
    lifted = np.concatenate([points, np.ones((n, 1))], axis=1)
    weight = np.full(n, 1.0 / n)
    for _ in range(10_000):
        moment = lifted.T @ (weight[:, None] * lifted)
        distance = np.einsum("ni,ni->n", lifted, np.linalg.solve(moment, lifted.T).T)
        worst = int(np.argmax(distance))
        step = (distance[worst] - k - 1) / ((k + 1) * (distance[worst] - 1))
        if step < tolerance:
            break
        weight = (1 - step) * weight
        weight[worst] += step
    centre = weight @ points
    covariance = (points - centre).T @ (weight[:, None] * (points - centre)) + 1e-12 * np.eye(k)
    values, vectors = np.linalg.eigh(k * covariance)
    root = vectors @ np.diag(1 / np.sqrt(values)) @ vectors.T
    return centre, root / np.max(np.linalg.norm((points - centre) @ root, axis=1))
