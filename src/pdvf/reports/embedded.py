"""Embeddings of trajectories in a plane, by t-SNE, and what is known of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

MOST = 2000
"""Points that t-SNE is given; of more, so many are drawn."""


class Embedded(NamedTuple):
    """Trajectories, each of one policy in one environment."""

    planes: Mapping[str, np.ndarray]  # z_d and z_pi by name, [n, 2]
    environment: np.ndarray  # [n] number of the environment
    policy: np.ndarray  # [n] number of the environment that the policy was trained in
    returned: np.ndarray | None  # [n] mean return of the policy there


def embed(evaluation: Mapping[str, np.ndarray]) -> Embedded:
    """The trajectories of an evaluation that has `tsne_z_d`, `tsne_z_pi` and their labels."""
    rows = len(evaluation["tsne_z_d"])
    kept = np.arange(rows)
    if rows > MOST:
        kept = np.sort(np.random.default_rng(0).choice(rows, MOST, replace=False))
    planes = {name: plane(evaluation[f"tsne_{name}"][kept]) for name in ("z_d", "z_pi")}
    environment, policy = (evaluation[f"tsne_{name}"][kept].astype(int) for name in ("environment", "policy"))
    returned = None
    if "transfer" in evaluation:
        place = {int(number): row for row, number in enumerate(evaluation["environments"])}
        rows_of = [np.array([place[n] for n in numbers.tolist()]) for numbers in (policy, environment)]
        returned = evaluation["transfer"][rows_of[0], 0, rows_of[1]]  # embedded are policies of the first seed
    return Embedded(planes, environment, policy, returned)


def plane(points: np.ndarray) -> np.ndarray:
    """t-SNE [n, 2] of points [n, d]; as they are where there is nothing to embed."""
    if len(points) < 4 or points.shape[1] < 2 or np.ptp(points, axis=0).max() < 1e-6:
        return np.zeros((len(points), 2))
    perplexity = min(30.0, (len(points) - 1) / 3)
    with threadpool_limits(1):  # threads that wait for each other's busy cores made it twenty times slower
        tsne = TSNE(perplexity=perplexity, init="pca", max_iter=500, random_state=0)
        return tsne.fit_transform(points.astype(np.float64))
