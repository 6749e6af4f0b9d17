"""Plays a trained model from one file, on any computer: `pdvf play FILE`.

Everything that adapts is `pdvf.deploy.runtime`; the environments are Gymnasium's. A file may hold PD-VF, as those that
come with the package do, or PD-VF-plus, which predicts no return.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import scipy.stats

from pdvf.core.objective import objective_of
from pdvf.core.validation import ConfigError
from pdvf.deploy.runtime import Adapter, AdapterError
from pdvf.families.base import Family, HostFamily
from pdvf.families.custom import NamedContexts, by_name
from pdvf.families.registry import family_names, make_family

MODELS = Path(__file__).parent / "models"


class Played(NamedTuple):
    """Returns [J] in one test environment, and what the run that made the model measured there, if it is known."""

    environment: int
    returns: np.ndarray
    measured: float | None
    predicted: float
    unlike: float  # `Adapter.out_of_distribution` of the last episode


def find(name: str) -> Path:
    """A file, or a model that comes with the package."""
    if Path(name).is_file():
        return Path(name)
    packed = {file.stem: file for file in sorted(MODELS.glob("*.pdvf"))}
    if name not in packed:
        known = f"or one of: {', '.join(packed)}" if packed else "(no models come with this version)"
        raise ConfigError(f"the model is {name!r}, expected a file made by `pdvf export` {known}")
    return packed[name]


def load(file: Path, target: str | None = None) -> tuple[Adapter, Family]:
    """A model and its family; `target` names a family of the user's own."""
    try:
        adapter = Adapter.load(file)
    except AdapterError as error:
        raise ConfigError(str(error)) from error
    return adapter, _family_of(adapter, file, target)


def play(file: Path, episodes: int, seed: int, target: str | None = None) -> tuple[str, list[Played]]:
    """The family of a model, and its episodes in each test environment; `target` is as for `load`."""
    if episodes < 1:
        raise ConfigError(f"--episodes is {episodes}, expected at least 1")
    adapter, family = load(file, target)
    measured = adapter.about.get("measured", {})
    found = []
    split = family.test(seed=0)
    for number, context in zip(split.numbers, split.contexts, strict=True):
        env = environment_of(family, number, context)
        returns = np.array([_episode(adapter, env, objective_of(family), seed + j) for j in range(episodes)])
        known = measured.get(str(number))
        found.append(Played(number, returns, known, adapter.predicted_return, adapter.out_of_distribution))
        env.close()
    return family.name, found


def _family_of(adapter: Adapter, file: Path, target: str | None) -> Family:
    name = adapter.about["family"]
    if target is None and name not in family_names():
        raise ConfigError(
            f"{file} is for the family {name!r}, expected one of: {', '.join(family_names())}; name your own with "
            "--family file.py:object"
        )
    family = make_family(target or name)
    if family.name != name:
        raise ConfigError(f"{file} is for the family {name!r}, expected {family.name!r} as --family says")
    given, expected = (adapter.observation_size, adapter.action_size), (family.observation.size, family.action.size)
    if given != expected:
        raise ConfigError(f"{file} is for observation and action of sizes {given}, expected {expected}")
    return family


def environment_of(family: Any, number: int, context: np.ndarray) -> gymnasium.Env:
    """An environment of a family, by its number and its context [c]."""
    if isinstance(family, HostFamily):
        named = family.named(context) if isinstance(family, NamedContexts) else by_name(family.context_names, context)
        return gymnasium.wrappers.TimeLimit(family.make(named), family.horizon)
    from pdvf.engines.gym_envs import env_of

    return env_of(family, number)


def _episode(adapter: Adapter, env: gymnasium.Env, objective: Any, seed: int) -> float:
    observation, _ = env.reset(seed=seed)
    adapter.reset(observation)
    score, over = objective.start(1), False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(adapter.act(observation))
        score, over = score.add(np.float32(reward), True), terminated or truncated
    return float(score.worth[0])


def table(family: str, played: list[Played]) -> str:
    """For people."""
    lines = [f"{family}: one adapted episode at a time, in environments that the model was not trained in"]
    lines.append(_row("environment", "mean return", "95 % interval", "in its run", "predicted", "unlike"))
    for one in played:
        known = "" if one.measured is None else f"{one.measured:.4g}"
        mean, between = f"{one.returns.mean():.4g}", interval([one])
        predicted = "" if np.isnan(one.predicted) else f"{one.predicted:.4g}"  # PD-VF-plus predicts none
        lines.append(_row(str(one.environment), mean, between, known, predicted, f"{one.unlike:.2f}"))
    known = [one.measured for one in played if one.measured is not None]
    its_run = f"{np.mean(known):.4g}" if len(known) == len(played) else ""
    mean = f"{np.mean([one.returns.mean() for one in played]):.4g}"
    lines.append(_row("mean", mean, interval(played), its_run, "", "").rstrip())
    return "\n".join(lines)


def interval(played: list[Played]) -> str:
    """Of the mean over environments, where only episodes are drawn: it is this model's; none if all are the same."""
    counts = np.array([len(one.returns) for one in played])
    if np.min(counts) < 2 or all(np.ptp(one.returns) == 0 for one in played):
        return "-"
    variances = np.array([np.var(one.returns, ddof=1) for one in played]) / counts
    total = np.sum(variances)
    freedom = total**2 / np.sum(variances**2 / (counts - 1))  # Welch and Satterthwaite
    error = np.sqrt(total) / len(played) * scipy.stats.t.ppf(0.975, freedom)
    mean = np.mean([one.returns.mean() for one in played])
    return f"[{mean - error:.4g}, {mean + error:.4g}]"


def _row(*cells: str) -> str:
    return "  " + " ".join(f"{cell:>{width}}" for cell, width in zip(cells, (11, 12, 18, 11, 10, 7), strict=True))
