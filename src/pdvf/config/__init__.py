"""The configuration of a run: its options together, from and to plain data.

Defaults are the paper's; the presets (`presets.py`) say only where they differ.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import tyro.conf

from pdvf.config.options import (
    AutoencoderOptions,
    BaselineOptions,
    CollectOptions,
    EvaluateOptions,
    PlusOptions,
    PolicyAutoencoderOptions,
    PPOOptions,
    ValueOptions,
)
from pdvf.core.validation import ConfigError as ConfigError
from pdvf.core.validation import positive as _positive
from pdvf.core.validation import require as _require
from pdvf.families import loading
from pdvf.families.custom import CustomOptions
from pdvf.families.registry import family_names, find_spec

BUDGETS = ("paper", "equal")


@dataclass(frozen=True)
class Config:
    """Everything that decides the result of a run."""

    family: tyro.conf.Fixed[str]
    """The family of environments."""
    environment: Any
    """The family's own options."""
    seed: int = 0
    """Seed of everything that is random."""
    policy_seeds: int = 5
    """PPO policies trained in each environment."""
    model_seeds: int = 5
    """Models (autoencoders and value function) trained on the data of these policies."""
    budget: Literal["paper", "equal"] = "paper"
    """Environment steps of a policy that a method trains: `paper` for `ppo.steps`, as one of PD-VF's; with `equal` all
    of a method's policies, of all seeds together, get what all of PD-VF's get."""
    engine: str = "auto"
    """What simulates: native (JAX), host (Python), c (MuJoCo), mjx (MuJoCo in JAX, a reference), warp (the same on an
    NVIDIA GPU), or auto for what suits the family and the machine."""
    complete: int = 0
    """Synthesised environments that join the training environments of every method (docs/decisions/0009-plus.md)."""
    shards: int = 1
    """Parts that phase 1 and the training of each baseline are cut into, tasks of their own for several GPUs or nodes.
    Rounding depends on it."""
    ppo: PPOOptions = field(default_factory=PPOOptions)
    collect: CollectOptions = field(default_factory=CollectOptions)
    dynamics: AutoencoderOptions = field(default_factory=lambda: AutoencoderOptions(dropout=0.0))
    policy: PolicyAutoencoderOptions = field(default_factory=PolicyAutoencoderOptions)
    value: ValueOptions = field(default_factory=ValueOptions)
    evaluate: EvaluateOptions = field(default_factory=EvaluateOptions)
    baselines: BaselineOptions = field(default_factory=BaselineOptions)
    plus: PlusOptions = field(default_factory=PlusOptions)

    def __post_init__(self) -> None:
        _require(0 <= self.seed < 2**32, "seed", self.seed, "a whole number from 0 to 2**32 - 1")
        _positive(self, "policy_seeds", "model_seeds", "shards")
        _require(self.complete >= 0, "complete", self.complete, "at least 0")
        _require(self.budget in BUDGETS, "budget", self.budget, f"one of {', '.join(BUDGETS)}")
        if self.family in family_names():
            expected = type(find_spec(self.family).options())
            _require(
                type(self.environment) is expected,
                "environment",
                type(self.environment).__name__,
                f"{expected.__name__}, the options of {self.family}",
            )
        probe, kept = self.environment.probe_steps, self.collect.steps
        _require(
            kept == 0 or probe < kept <= self.environment.horizon,
            "collect.steps",
            kept,
            f"0 or from probe_steps + 1 = {probe + 1} to horizon = {self.environment.horizon}",
        )
        for name, value in flatten(dataclasses.asdict(self)):
            for x in value if isinstance(value, tuple) else (value,):
                fits = not isinstance(x, int | float) or abs(x) < 2**63
                _require(fits, name, x, "a finite number of at most 64 bits")  # JSON knows no others


def environment_options(family: str) -> Any:
    """The usual options of a family; for one of the user's own, what it says of itself."""
    if family in family_names():
        return find_spec(family).options()
    own = loading.load(family)
    return CustomOptions(int(own.horizon), int(own.probe_steps))


def to_dict(config: Config) -> dict[str, Any]:
    """A configuration as plain data for JSON."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested objects with their dotted names, such as `ppo.learning_rate`."""
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def from_dict(data: Mapping[str, Any]) -> Config:
    """The configuration that `to_dict` wrote; unknown or missing options fail."""
    family = data.get("family")
    _require(isinstance(family, str), "family", family, "the name of a family")
    usual = Config(str(family), environment_options(str(family)))
    given, known = dict(flatten(data)), dict(flatten(dataclasses.asdict(usual)))
    for name, default in vars(usual).items():
        odd = name in given and dataclasses.is_dataclass(default)
        _require(not odd, name, given.get(name), "an object with its options")
    unknown, missing = (", ".join(sorted(names)) for names in (given.keys() - known, known.keys() - given))
    _require(not unknown, "option of configuration", unknown, "only options this version knows")
    _require(not missing, "configuration without option", missing, "every option this version knows")
    for name, default in known.items():
        _same_type(name, given[name], default)

    def value(name: str, default: Any) -> Any:
        if dataclasses.is_dataclass(default):
            return type(default)(**{option: value(f"{name}.{option}", own) for option, own in vars(default).items()})
        return _tuples(given[name])

    return Config(**{name: value(name, default) for name, default in vars(usual).items()})


def with_options(base: Config, options: Mapping[str, Any]) -> Config:
    """A configuration with some options changed, by dotted names such as `ppo.learning_rate`."""
    usual = dict(flatten(to_dict(base)))
    for name in options:
        if name not in usual:
            raise ConfigError(f"unknown option {name!r}: expected one of those in a run's config.json")
    return from_dict({**usual, **options})


def _same_type(name: str, given: Any, default: Any) -> None:
    """Raises unless a value from JSON is of the kind of an option's default."""
    if isinstance(default, tuple):
        _require(isinstance(given, list) and len(given) == len(default), name, given, f"a list of {len(default)}")
        for value, part in zip(given, default, strict=True):
            _same_type(name, value, part)
        return
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[type(default)]
    fits = type(given) is type(default) or (type(default), type(given)) == (float, int)
    _require(fits, name, given, words)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
