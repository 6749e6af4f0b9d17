"""How far do known returns carry into a gap between environments? A yardstick for a W that learns from returns alone.

python benchmarks/interpolation.py RUN [OUT.json]

RUN is a finished run on Spaceship. Many policy embeddings are played in every training environment, so their returns
are known exactly. Then neighbouring environments are left out, as many as there are for testing, and the returns there
are interpolated by a Gaussian process over the true angle, which no method sees. The embedding with the best
interpolated return is chosen in each of them; what it really returns there is the score. No test environment is played.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import from_dict
from pdvf.imagine.plan import candidates
from pdvf.parallel import use_all_cores
from pdvf.pipeline import Problem, artefact_shapes
from pdvf.runs import RunStore

CANDIDATES = 1500
WIDTHS = (0.3, 0.5, 0.8, 1.2)
"""Of the kernel, in radians; neighbouring environments are 0.31 apart."""


def interpolate(angles: np.ndarray, returns: np.ndarray, wanted: np.ndarray, width: float) -> np.ndarray:
    """Returns [N, e] at the wanted angles [e] from those [N, E] at angles [E]: the mean of a periodic process."""

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-2 * np.sin((a[:, None] - b) / 2) ** 2 / width**2)

    usual = returns.mean(axis=1, keepdims=True)
    covariance = kernel(angles, angles) + 1e-3 * np.eye(len(angles))
    return usual + (returns - usual) @ np.linalg.solve(covariance, kernel(angles, wanted))


def in_gaps(angles: np.ndarray, returns: np.ndarray, size: int) -> dict[str, float]:
    """Mean score over all gaps of `size` neighbours that have known environments on both sides."""
    scores: dict[str, list[float]] = {}
    for first in range(1, len(angles) - size):
        out = np.arange(first, first + size)
        known = np.setdiff1d(np.arange(len(angles)), out)
        for width in WIDTHS:
            chosen = interpolate(angles[known], returns[:, known], angles[out], width).argmax(axis=0)
            scores.setdefault(f"process of width {width}", []).append(returns[chosen, out].mean())
        safe = returns[:, known].min(axis=1).argmax()
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

    @jax.jit
    def play(adapter, key):
        z_pi = candidates(adapter.train_z_pi, CANDIDATES, key)
        return adapter.body.score(problem.engine, contexts, z_pi, key, 0.0).returns

    found = []
    for model in range(problem.config.model_seeds):
        returns = play(jax.tree.map(lambda x, model=model: x[model], adapters), jax.random.key(model))
        found.append(in_gaps(np.asarray(contexts)[:, 0], np.asarray(returns), tests))
        print(f"model {model}: {found[-1]}", flush=True)
    mean = {name: round(float(np.mean([scores[name] for scores in found])), 3) for name in found[0]}
    print(f"mean: {mean}")
    if len(sys.argv) > 2:
        command = "python benchmarks/interpolation.py RUN OUT.json"
        Path(sys.argv[2]).write_text(json.dumps({"command": command, "models": found, "mean": mean}, indent=1) + "\n")


if __name__ == "__main__":
    main()
