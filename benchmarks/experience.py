"""How well does experience choose where no environment was? PD-VF-plus in training environments that are left out.

python benchmarks/experience.py RUN [OUT.json]

RUN needs no more than the policies of phase 1. All finished ones are played in all training environments. Then some of
these environments are left out with their policies (on a circle as many neighbours as there are for testing, otherwise
one at a time), and PD-VF-plus chooses among the others and plays there. It is told how near environments are from
their true contexts, where the method itself has z_d: this asks what the choice is worth, not the embedding. No test
environment is played.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import from_dict
from pdvf.core.devices import use_all_cores
from pdvf.experiment.store import RunStore
from pdvf.methods.base import Feedback, Hidden, Transitions
from pdvf.methods.experienced import WIDTHS as LIKELY
from pdvf.methods.experienced import fit_hyperparameters, posterior_mean, spacing
from pdvf.methods.multitask_ppo import scaled_features
from pdvf.methods.play import play_everywhere
from pdvf.paper.pipeline import Problem, artefact_shapes, finished_policies, transfer
from pdvf.rl.networks import Actor

EPISODES = 2
"""Of every policy in every environment to choose by, and of every choice to judge it by."""
WIDTHS = (0.5, 1.0, 2.0, 4.0)
"""Of the kernel averages that PD-VF-plus's Gaussian process is compared with."""


class ChosenBeforehand(eqx.Module):
    """Is told the environment, and plays the policy that was chosen for it [E] beforehand."""

    actors: Actor
    chosen: Any

    def begin_episode(self, observation: Any, hidden: Hidden | None) -> Any:
        """Which one."""
        del observation
        assert hidden is not None
        return self.chosen[hidden.environment]

    def adapt(self, memory: Any, transitions: Transitions) -> Any:
        """Need not."""
        del transitions
        return memory

    def act(self, memory: Any, observation: Any, feedback: Feedback) -> tuple[Any, Any]:
        """The chosen policy's mean."""
        del feedback
        return jax.tree.map(lambda x: x[memory], self.actors)(observation), memory


def by_average(returns: Any, places: Any, everywhere: Any, width: float) -> Any:
    """Expected returns [K, E]: those known at some places, weighted by a Gaussian of the distance."""
    apart = jnp.sum((everywhere[:, None] - places[None]) ** 2, axis=-1)
    return returns @ jax.nn.softmax(-apart / (2 * (width * spacing(places)) ** 2), axis=-1).T


def by_process(returns: Any, places: Any, everywhere: Any) -> Any:
    """Expected returns [K, E] as PD-VF-plus has them."""
    kernel = fit_hyperparameters(returns, places, LIKELY)
    return jax.vmap(lambda place: posterior_mean(returns, places, place, kernel), out_axes=1)(everywhere)


def gaps(problem: Problem) -> list[np.ndarray]:
    """Training environments that are left out together."""
    count = problem.contexts.shape[0]
    size = problem.everywhere.shape[0] - count if problem.engine.family.context_names == ("angle",) else 1
    return [np.arange(first, first + size) for first in range(0, count - size + 1, max(size // 2, 1))]


def main() -> None:
    """One run."""
    use_all_cores()
    run = Path(sys.argv[1])
    store = RunStore.open(run)
    problem = Problem(from_dict(store.config))
    family, contexts = problem.engine.family, jnp.asarray(problem.contexts)
    policies = store.load("policies", artefact_shapes(problem)["policies"])
    finished = finished_policies(policies)
    count, seeds = contexts.shape[0], policies.log_std.shape[2]
    many = jnp.repeat(contexts, EPISODES, axis=0)
    played = jax.jit(lambda a: transfer(problem.engine, many, a, jax.random.key(50)))(finished)
    known = np.asarray(played).reshape(-1, count, EPISODES)
    returns = known.mean(axis=-1)  # [P, E]
    features = np.asarray(scaled_features(family, contexts)[0])
    apart = np.linalg.norm(features[:, None] - features[None], axis=-1)
    home = np.arange(returns.shape[0]) // seeds
    scores: dict[str, list[float]] = {}

    def score(name: str, values: Any) -> None:
        scores.setdefault(name, []).extend(float(v) for v in values)

    left_out = gaps(problem)
    each = len(left_out)
    actors = jax.tree.map(lambda x: jnp.broadcast_to(x, (each, *x.shape)), finished)
    for out in left_out:
        others = np.setdiff1d(np.arange(count), out)
        near = others[apart[np.ix_(out, others)].argmin(axis=1)]
        own = returns.reshape(count, seeds, count)
        score("PPOenv", [own[e, :, e].mean() for e in out])
        score("NN", [own[n, own[n, :, n].argmax(), e] for n, e in zip(near, out, strict=True)])
        left = returns[np.isin(home, others)]
        score("best single", left[left[:, others].mean(axis=1).argmax()][out])
        score("best in hindsight", left[:, out].max(axis=0))

    choices = {f"kernel average, width {w:g}": lambda *a, w=w: by_average(*a, w) for w in WIDTHS}
    choices["Gaussian process"] = by_process
    play = jax.jit(lambda a, key: play_everywhere(problem.engine, a, contexts, EPISODES, True, key)["honest"])
    for name, expect in choices.items():
        chosen = []
        for out in left_out:
            gone = np.isin(np.arange(count), out)
            known = jnp.asarray(returns[:, ~gone])
            expected = expect(known, jnp.asarray(features[~gone]), jnp.asarray(features))
            chosen.append(np.where(gone[home][:, None], -np.inf, np.asarray(expected)).argmax(axis=0))
        found = np.asarray(
            play(ChosenBeforehand(actors, jnp.asarray(np.stack(chosen))), jax.random.key(51))
        )  # [gaps, E, J]
        for out, reached in zip(left_out, found, strict=True):
            score(name, reached[out].mean(axis=-1))
        print(name, round(float(np.mean(scores[name])), 1), flush=True)
    result = {
        "command": f"python benchmarks/experience.py {run.name}",
        "family": family.name,
        "left out": [[int(family.train(problem.config.seed).numbers[e]) for e in out] for out in left_out],
        "mean return there": {name: round(float(np.mean(values)), 1) for name, values in scores.items()},
    }
    print(json.dumps(result, indent=2))
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
