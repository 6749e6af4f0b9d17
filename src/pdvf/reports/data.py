"""What a report is made from: everything a run left that is not needed to play."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pdvf.config import ConfigError, from_dict
from pdvf.experiment.comparison import COLUMNS
from pdvf.experiment.errors import RunError
from pdvf.experiment.files import read_file, read_json, require_fields
from pdvf.experiment.pytrees import LARGEST, require_axes
from pdvf.experiment.store import RunStore
from pdvf.families import Family, make_family
from pdvf.families.circle import OnCircle
from pdvf.methods.base import AGENT
from pdvf.paper.pipeline import AXES
from pdvf.reports import adaptation, paper
from pdvf.reports.embedded import Embedded, embed
from pdvf.reports.statistics import Estimate, Summary, summarise
from pdvf.reports.style import look, rank

PHASES = {
    "policies": "reinforcement learning",
    "trajectories": "collection",
    "dynamics": "self-supervised learning",
    "adapter": "supervised learning",
    "upper_bound": "reinforcement learning of PPOenv",
    "evaluation": "evaluation",
}
"""The artefact in whose manifest each phase's metrics and seconds are found."""


class Group(NamedTuple):
    """Returns [E, S, J] of one method under one protocol in the environments of one split."""

    split: str
    method: str
    protocol: str
    environments: tuple[int, ...]
    returns: np.ndarray
    summary: Summary


@dataclass(frozen=True)
class Run:
    """A run, read and checked."""

    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    groups: tuple[Group, ...]
    evaluation: Mapping[str, np.ndarray]
    manifests: Mapping[str, Mapping[str, Any]]  # of every artefact, by name
    steps: Mapping[str, int] = field(default_factory=dict)  # of all environments that each method learned in
    adaptation: tuple[adaptation.Adaptation, ...] = ()  # of the methods that infer the dynamics
    filmed: Sequence[Any] = ()  # episodes with pictures: `films.FilmedEpisode`

    @property
    def family(self) -> str:
        """Name of the family."""
        return str(self.config.get("family", "unknown"))

    @cached_property
    def numbers(self) -> np.ndarray:
        """Numbers [E] of all environments, those for training first."""
        if self.has("environments"):
            return self.evaluation["environments"].astype(int)
        return np.array([*self._played("train"), *self._played("test")])

    @cached_property
    def contexts(self) -> np.ndarray:
        """Contexts [E, c] of all environments, without the offsets of synthesised ones where the family is known."""
        return self.evaluation["contexts"][:, : len(self.context_names) or None]

    @cached_property
    def made(self) -> Family | None:
        """The family with the run's options; None where it cannot be made."""
        try:
            config = from_dict(dict(self.config))
            return make_family(config.family, config.environment)
        except ConfigError:
            return None

    @property
    def on_circle(self) -> bool:
        """Whether the dynamics lie on a circle."""
        return isinstance(self.made, OnCircle)

    @property
    def in_paper(self) -> bool:
        """Whether the paper has returns of this family."""
        return bool(paper.test_returns(self.family))

    @property
    def context_names(self) -> tuple[str, ...]:
        """Names of the hidden numbers; none where the family cannot be made."""
        return () if self.made is None else tuple(self.made.context_names)

    @property
    def title(self) -> str:
        """The family's own name, which is not how it was named on the command line if it is the user's."""
        return self.family if self.made is None else self.made.name

    def label(self, method: str) -> str:
        """A method's name; the mark of those that are not in the paper stands where the paper has the family."""
        return look(method).label if self.in_paper else look(method).label.rstrip("*")

    @cached_property
    def is_test(self) -> np.ndarray:
        """Whether each environment [E] is for testing."""
        train = int(self.evaluation["train_count"]) if self.has("train_count") else len(self._played("train"))
        return np.arange(len(self.numbers)) >= train

    def _played(self, split: str) -> list[int]:
        return sorted({number for group in self.select(split) for number in group.environments})

    def select(self, split: str, protocol: str | None = None) -> list[Group]:
        """Groups of a split, the honest ones of a method before the others, which only the paper's families have."""
        shown = ("honest", "peek") if self.in_paper else ("honest",)
        return [g for g in self.groups if g.split == split and g.protocol in ((protocol,) if protocol else shown)]

    def honest(self, split: str) -> dict[str, Group]:
        """Honest groups of a split by method."""
        return {group.method: group for group in self.select(split, "honest")}

    @cached_property
    def digits(self) -> int:
        """Digits after the point that the largest return of the run deserves."""
        return 3 if max(float(np.abs(group.returns).max()) for group in self.groups) < 10 else 1

    def number(self, value: float) -> str:
        """A return as text."""
        return f"{value:.{self.digits}f}".replace("-", "−")

    def interval(self, estimate: Estimate) -> str:
        """The interval of an estimate; nothing where there is none or it has no width."""
        if np.isnan(estimate.low) or estimate.low == estimate.high:
            return ""
        return f"[{self.number(estimate.low)}, {self.number(estimate.high)}]"

    def paper_mean(self, group: Group) -> float | None:
        """The paper's mean over the environments of a group, where it has all of them."""
        bars = paper.test_returns(self.family).get(group.method, {})
        known = [bars[number].mean for number in group.environments if number in bars]
        return float(np.mean(known)) if len(known) == len(group.environments) else None

    @cached_property
    def embedded(self) -> Embedded:
        """The embeddings of trajectories in a plane; for a run that has them."""
        return embed(self.evaluation)

    def has(self, *arrays: str) -> bool:
        """Whether the evaluation has these arrays, and anything in them."""
        return all(name in self.evaluation and self.evaluation[name].size for name in arrays)

    def option(self, *names: str, default: Any = None) -> Any:
        """A whole number of the configuration by its path."""
        value: Any = self.config
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if type(value) is int else default

    def history(self, artefact: str, metric: str) -> np.ndarray | None:
        """A metric over the stages in which it was taken, [stages, seeds]; None where it never was."""
        found = [_numbers(artefact, metric, s[metric]) for s in self.stages(artefact) if s.get(metric) is not None]
        rows = [row.ravel() for row in found if row.size]
        if len({row.size for row in rows}) > 1:
            raise _odd_history(artefact, metric, "numbers for other seeds in some stages")
        return np.array(rows) if rows else None

    def stages(self, artefact: str) -> list[Mapping[str, Any]]:
        """Metrics of each stage of the phase that made an artefact."""
        info = self.manifests[artefact]["info"] if artefact in self.manifests else {}
        return list(info.get("history") or [])

    def curves(self) -> np.ndarray | None:
        """Mean episode return [E, updates] while the policies were trained, NaN where no episode ended.

        E are the training environments, or all of them where PPOenv's policies were trained for as long.
        """
        train, test = self._curves("policies"), self._curves("upper_bound")
        if train is None or test is None or train.shape[1] != test.shape[1]:
            return train
        return np.concatenate([train, test])

    def _curves(self, artefact: str) -> np.ndarray | None:
        parts = [_numbers(artefact, "curve", s["curve"]) for s in self.stages(artefact) if "curve" in s]
        if any(part.ndim != 2 or len(part) != len(parts[0]) for part in parts):
            raise _odd_history(artefact, "curve", "no row for each environment")
        return np.concatenate(parts, axis=1) if sum(part.size for part in parts) else None

    def seconds(self) -> dict[str, float]:
        """Time that each phase took, and the training of each method that was compared."""
        agents = {name: f"method {name.removeprefix(AGENT)}" for name in self.manifests if name.startswith(AGENT)}
        found = {
            text: self.manifests[name]["info"].get("seconds")
            for name, text in (PHASES | agents).items()
            if name in self.manifests
        }
        return {text: float(seconds) for text, seconds in found.items() if seconds is not None}

    def differences(self) -> dict[str, dict[str, list[str]]]:
        """What the artefacts were not all made with: artefacts by version or device, by what it is of."""
        found: dict[str, dict[str, list[str]]] = {}
        for artefact, manifest in self.manifests.items():
            made = {name: f"{name} {version}" for name, version in manifest["versions"].items() if version}
            for what, which in (made | {"": device_text(manifest["device"])}).items():
                found.setdefault(what, {}).setdefault(which, []).append(artefact)
        return {what: by for what, by in found.items() if len(by) > 1}


def device_text(device: Mapping[str, Any]) -> str:
    """How many devices of which kind."""
    return f"{device.get('count')} × {device.get('kind')} ({device.get('platform')})"


def _numbers(artefact: str, metric: str, value: Any) -> np.ndarray:
    """A metric of a history as an array, NaN for null."""
    try:
        numbers = np.array(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise _odd_history(artefact, metric, str(error)) from error
    if np.any(np.abs(numbers) > LARGEST):
        raise _odd_history(artefact, metric, f"numbers above {LARGEST:g}")
    return numbers


def _odd_history(artefact: str, metric: str, what: str) -> RunError:
    return RunError(
        f"the history of artefact {artefact!r} has {what} for {metric!r}: delete the artefact to make it anew"
    )


def read_run(store: RunStore, steps: Mapping[str, int] | None = None) -> Run:
    """Everything of a run that its report shows; `steps` are those of all environments that each method learned in."""
    groups = read_returns(store)
    evaluation = read_evaluation(store)
    manifests = {name: store.manifest(name) for name in store.names("") if "-stage-" not in name}
    for name, manifest in manifests.items():
        if not all(isinstance(stage, dict) for stage in manifest["info"].get("history") or []):
            raise RunError(
                f"the history of artefact {name!r} is no list of metrics: delete the artefact to make it anew"
            )
    found = adaptation.read(store)
    return Run(store.config, _read_environment(store), groups, evaluation, manifests, steps or {}, found)


def _read_environment(store: RunStore) -> dict[str, Any]:
    path, advice = store.folder / "environment.json", "delete it, the report does without"
    if not path.exists():
        return {}
    environment = read_json(path, advice)
    require_fields(environment, {"device": (dict, type(None)), "versions": (dict, type(None))}, path, advice)
    return environment


def read_evaluation(store: RunStore) -> dict[str, np.ndarray]:
    """The arrays of the artefact `evaluation`, verified; none where it is not there, as in a run without PD-VF."""
    if not store.has("evaluation"):
        return {}
    arrays = store.load_arrays("evaluation")
    where = f"artefact 'evaluation' in {store.folder}"
    try:
        require_axes(where, arrays, AXES, ("environments", "train_count"))
        count, numbers = int(arrays["train_count"]), arrays["environments"]
        if not 0 < count < len(numbers):
            raise RunError(f"{where} has {count} of {len(numbers)} environments for training, expected some")
        for name in ("tsne_policy", "tsne_environment"):
            if name in arrays and not np.isin(arrays[name], numbers).all():
                raise RunError(f"{where}: array {name!r} has other environments than the run")
        for name in ("tsne_z_d", "tsne_z_pi"):  # scikit-learn's t-SNE may crash on numbers of other sizes
            if name in arrays and np.any(np.abs(arrays[name]) > 1.01):
                raise RunError(f"{where}: array {name!r} holds no unit vectors")
    except RunError as error:
        raise RunError(f"{error}: delete it and run `pdvf evaluate {store.folder}` again") from error
    return arrays


def read_returns(store: RunStore) -> tuple[Group, ...]:
    """The groups of returns.csv: test before training, methods in the order of `METHODS`, honest before peek."""
    path = store.folder / "returns.csv"
    if not path.exists():
        raise _evaluate_first(store, "returns.csv")
    anew = f"delete it and run `pdvf evaluate {store.folder}` again"
    try:
        reader = csv.DictReader(io.StringIO(read_file(path).decode(), newline=""))
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise RunError(f"{path} has no column {missing[0]!r}, expected {', '.join(COLUMNS)}: {anew}")
        cells = _cells(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"cannot read {path} ({error}): {anew}") from error
    except ValueError as error:
        raise RunError(f"{path} has a line that cannot be read ({error}): {anew}") from error
    if not any(split == "test" for split, _, _ in cells):
        raise RunError(f"{path} has no returns in test environments: {anew}")
    groups = []
    for (split, method, protocol), cell in cells.items():
        axes = [sorted(set(axis)) for axis in zip(*cell, strict=True)]
        shape = [len(axis) for axis in axes]
        if len(cell) != math.prod(shape):
            raise RunError(
                f"{path} is incomplete for method {method!r}, {split}, {protocol} ({len(cell)} returns, expected "
                f"{math.prod(shape)} = {shape[0]} environments * {shape[1]} seeds * {shape[2]} episodes): {anew}"
            )
        returns = np.array([cell[place] for place in itertools.product(*axes)]).reshape(shape)
        groups.append(Group(split, method, protocol, tuple(axes[0]), returns, summarise(returns)))
    return tuple(sorted(groups, key=lambda g: (g.split != "test", rank(g.method), g.method, g.protocol)))


Cell = dict[tuple[int, int, int], float]  # return by environment, seed and episode


def _cells(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, str, str], Cell]:
    cells: dict[tuple[str, str, str], Cell] = {}
    for line, row in enumerate(rows, 2):
        if None in row.values():
            raise ValueError(f"line {line}: {sum(v is not None for v in row.values())} values, expected {len(row)}")
        value = float(row["return"])
        if not abs(value) <= LARGEST:
            raise ValueError(f"line {line}: return is {value}, expected a finite number up to {LARGEST:g}")
        at = (int(row["environment"]), int(row["seed"]), int(row["episode"]))
        cell = cells.setdefault((row["split"], row["method"], row["protocol"]), {})
        if at in cell:
            raise ValueError(f"line {line}: environment, seed and episode {at} are there twice")
        cell[at] = value
    return cells


def _evaluate_first(store: RunStore, what: str) -> RunError:
    return RunError(f"{what} is not in {store.folder}: run `pdvf evaluate {store.folder}` first")
