"""How far do known returns carry into a gap between environments? A yardstick for a W that learns from returns alone.

python benchmarks/interpolation.py RUN [OUT.json]

RUN is a finished run on Spaceship. Many policy embeddings are played in every training environment, so their returns
are known exactly: without noise, or as the mean over some episodes with noise on the actions. Then neighbouring
environments are left out, as many as there are for testing, and the returns there are interpolated over the true angle,
which no method sees, by a Gaussian process or on the line between the known environments on both sides. The embedding
with the best interpolated return is chosen in each of them; what it returns there, without noise, is the score. No test
environment is played.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import from_dict
from pdvf.core.arrays import Array
from pdvf.core.devices import use_all_cores
from pdvf.engines.rollout import acting, play
from pdvf.experiment.store import RunStore
from pdvf.paper.adapter import Adapter
from pdvf.paper.aggregate import between
from pdvf.paper.pipeline import Problem, artefact_shapes

CANDIDATES = 1500
WIDTHS = (0.3, 0.5, 0.8, 1.2)
"""Of the kernel, in radians; neighbouring environments are 0.31 apart."""
NOISES = (0.0, 0.05, 0.1, 0.2)
"""On actions, while embeddings are played to know their returns, in units of the largest action."""
EPISODES = 8
"""Of each embedding in each environment, where there is noise."""


def candidates(bank: Array, count: int, key: Array) -> Array:
    """Embeddings [count, e]: half of the training policies [B, e], half between two of them, with a little noise."""
    own_key, *keys = jax.random.split(key, 4)
    half = count // 2
    own = bank[jax.random.randint(own_key, (count - half,), 0, bank.shape[0])]
    return jnp.concatenate([own, between(bank, half, keys)])


def interpolate(angles: np.ndarray, returns: np.ndarray, wanted: np.ndarray, width: float) -> np.ndarray:
    """Returns [N, e] at the wanted angles [e] from those [N, E] at angles [E]: the mean of a periodic process."""

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-2 * np.sin((a[:, None] - b) / 2) ** 2 / width**2)

    usual = returns.mean(axis=1, keepdims=True)
    covariance = kernel(angles, angles) + 1e-3 * np.eye(len(angles))
    return usual + (returns - usual) @ np.linalg.solve(covariance, kernel(angles, wanted))


def in_gaps(angles: np.ndarray, seen: np.ndarray, returns: np.ndarray, size: int) -> dict[str, float]:
    """Mean score over all gaps of `size` neighbours that have known environments on both sides.

    `seen` [N, E] are the returns to choose by, `returns` [N, E] those that count.
    """
    scores: dict[str, list[float]] = {}
    for first in range(1, len(angles) - size):
        out, sides = np.arange(first, first + size), [first - 1, first + size]
        known = np.setdiff1d(np.arange(len(angles)), out)
        for width in WIDTHS:
            chosen = interpolate(angles[known], seen[:, known], angles[out], width).argmax(axis=0)
            scores.setdefault(f"process of width {width}", []).append(returns[chosen, out].mean())
        share = (angles[out] - angles[sides[0]]) / (angles[sides[1]] - angles[sides[0]])
        chosen = (seen[:, sides] @ np.stack([1 - share, share])).argmax(axis=0)
        scores.setdefault("line between both sides", []).append(returns[chosen, out].mean())
        safe = seen[:, known].min(axis=1).argmax()
        scores.setdefault("best in the worst known environment", []).append(returns[safe, out].mean())
        scores.setdefault("best in hindsight", []).append(returns[:, out].max(axis=0).mean())
    return {name: round(float(np.mean(values)), 3) for name, values in scores.items()}


def main() -> None:
    """All models of a run."""
    use_all_cores()
    store = RunStore.open(Path(sys.argv[1]))
    problem = Problem(from_dict(store.config))
    contexts = jnp.asarray(problem.contexts)
    adapters = store.load("adapter", artefact_shapes(problem)["adapter"])
    tests = len(problem.engine.family.test(problem.config.seed).numbers)

    @partial(jax.jit, static_argnames="noise")
    def returns_of(adapter: Adapter, z_pi: Array, noise: float, key: Array) -> Array:
        """[N, E] of embeddings [N, e], one episode each."""
        family = problem.engine.family
        begin_key, play_key = jax.random.split(key)
        probed = adapter.body.begin(problem.engine, contexts, begin_key)

        def one(row: tuple[Array, Array]) -> Array:
            act = acting(lambda s: adapter.body.decoder(s, row[0]), noise)
            steps = family.horizon - family.probe_steps
            return play(problem.engine, contexts, probed.episodes, act, row[1], steps, record=False)[0].returns

        return jax.lax.map(one, (z_pi, jax.random.split(play_key, z_pi.shape[0])), batch_size=500)

    found: dict[str, list[dict[str, float]]] = {}
    for model in range(problem.config.model_seeds):
        adapter = jax.tree.map(lambda x, model=model: x[model], adapters)
        z_pi = candidates(adapter.train_z_pi, CANDIDATES, jax.random.key(model))
        exact = np.asarray(returns_of(adapter, z_pi, 0.0, jax.random.key(0)))
        for noise in NOISES:
            keys = jax.random.split(jax.random.key(1), EPISODES if noise else 1)
            seen = np.mean([returns_of(adapter, z_pi, noise, key) for key in keys], axis=0)
            scores = in_gaps(np.asarray(contexts)[:, 0], seen, exact, tests)
            found.setdefault(f"noise {noise:g}", []).append(scores)
            print(f"model {model}, noise {noise:g}: {scores}", flush=True)
    mean = {
        noise: {name: round(float(np.mean([scores[name] for scores in models])), 3) for name in models[0]}
        for noise, models in found.items()
    }
    print(json.dumps(mean, indent=1))
    if len(sys.argv) > 2:
        command = "python benchmarks/interpolation.py RUN OUT.json"
        Path(sys.argv[2]).write_text(json.dumps({"command": command, "models": found, "mean": mean}, indent=1) + "\n")


if __name__ == "__main__":
    main()
