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

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.config import PlusOptions, from_dict
from pdvf.methods.base import Feedback, Hidden, Transitions
from pdvf.methods.conditioned import scaled_features
from pdvf.methods.experienced import Experienced, spacing
from pdvf.methods.play import play_everywhere
from pdvf.parallel import use_all_cores
from pdvf.pipeline import Problem, artefact_shapes, finished_policies, transfer
from pdvf.runs import RunStore

EPISODES = 2
"""Of every policy in every environment to choose by, and of every choice to judge it by."""
CHOICES = {
    "width 0.5": PlusOptions(width=0.5),
    "width 1": PlusOptions(width=1.0),
    "width 2": PlusOptions(width=2.0),
    "width 4": PlusOptions(width=4.0),
}


class Told(Experienced):
    """Is told the environment, from whose context `nearness` [E, E] follows."""

    nearness: Any

    def begin_episode(self, observation: Any, hidden: Hidden | None) -> Any:
        """Chooses at once."""
        assert hidden is not None
        policy = jnp.argmax(self.returns @ jax.nn.softmax(self.nearness[hidden.environment]))
        return policy.astype(super().begin_episode(observation, None).dtype)

    def adapt(self, memory: Any, transitions: Transitions) -> Any:
        """Has done so."""
        del transitions
        return memory

    def act(self, memory: Any, observation: Any, feedback: Feedback) -> tuple[Any, Any]:
        """The chosen policy's mean."""
        del feedback
        return jax.tree.map(lambda x: x[memory], self.actors)(observation), memory


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

    for name, options in CHOICES.items():
        nearness, left = [], []
        for out in left_out:
            gone = np.isin(np.arange(count), out)
            width = options.width * float(spacing(jnp.asarray(features[~gone])))
            nearness.append(np.where(gone, -np.inf, -(apart**2) / (2 * width**2)))
            left.append(np.where(gone[home][:, None], -1e6, returns))
        agents = Told(  # [gaps, ...]
            actors,
            jnp.asarray(np.stack(left), jnp.float32),
            jnp.zeros((each, len(returns))),
            jnp.zeros((each, count, 1)),
            jnp.ones(each),
            None,  # pyright: ignore[reportArgumentType]
            options,
            jnp.asarray(np.stack(nearness), jnp.float32),
        )
        play = jax.jit(lambda a, key: play_everywhere(problem.engine, a, contexts, EPISODES, True, key)["honest"])
        found = np.asarray(play(agents, jax.random.key(51)))
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
