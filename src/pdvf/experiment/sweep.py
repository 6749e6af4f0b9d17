"""A search over options of the configuration, as the paper's appendix C did it.

Nothing is chosen on test environments: some neighbouring training environments are held out of everything that
learns, and the option values with the best return there win.

    SWEEP/sweep.json         what is searched
    SWEEP/trials/NNN/        a run folder for each combination
    SWEEP/sweep.csv          one line for each combination that is finished, the best marked

Combinations share the phases in which they do not differ. A sweep that was stopped goes on with what is missing.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pdvf.config import Config, ConfigError, from_dict, to_dict, with_options
from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Listener
from pdvf.experiment.files import read_json, require_fields, require_own_or_empty, to_csv, to_json, write_file
from pdvf.experiment.plan import Task, leading_to, plan, recipes_for, whole_of
from pdvf.experiment.pytrees import require_axes
from pdvf.experiment.schedule import planned_steps
from pdvf.experiment.store import SWEEP, RunStore
from pdvf.methods import METHODS, Method, complete
from pdvf.methods.base import returns_artefact
from pdvf.paper.pipeline import AXES, PHASES, Problem, Recipe

SCORES = ("held_out_return", "held_out_std", "trained_return", "seconds")
"""What sweep.csv says of a trial; the first decides."""
APPENDIX_C: dict[str, tuple[Any, ...]] = {
    "ppo.learning_rate": (1e-4, 3e-4, 5e-4, 1e-3),
    "dynamics.learning_rate": (1e-4, 1e-3, 1e-2),
    "dynamics.batch": (8, 32, 256, 2048),
    "dynamics.embedding": (2, 8, 32),
    "dynamics.model": (32, 64, 128),
    "policy.learning_rate": (1e-4, 1e-3, 1e-2),
    "policy.batch": (8, 32, 256, 2048),
    "policy.embedding": (2, 8, 32),
    "policy.model": (32, 64, 128),
    "value.epochs": (1000, 500, 200, 100),
    "value.stage_epochs": (500, 200, 100),
    "value.learning_rate": (5e-4, 1e-3, 5e-3, 1e-2),
    "value.batch": (64, 128, 256),
}
"""The values that the paper tried for each option."""
TRAIN = ("family", "seed", "policy_seeds", "environment", "engine", "shards", "ppo", "complete", "plus")
EMBED = (*TRAIN, "collect", "model_seeds", "dynamics", "policy")
MATTERS = {
    complete.NAME: TRAIN,
    "train": TRAIN,
    "collect": (*TRAIN, "collect"),
    "embed": EMBED,
    "fit": (*EMBED, "value"),
}
"""The options that decide what a phase leaves."""

Execute = Callable[..., None]
"""Makes tasks, tells a listener of their events, and calls a third argument, if there is one, now and then."""


@dataclass(frozen=True)
class HeldOut(Problem):
    """A problem with fewer training environments, and nothing else: those held out are not in it."""

    held_out: tuple[int, ...] = ()  # numbers, as in the paper

    @cached_property
    def contexts(self) -> Any:
        """Contexts of the training environments that are left."""
        split = self.engine.family.train(self.config.seed)
        return split.contexts[[number not in self.held_out for number in split.numbers]]

    @cached_property
    def everywhere(self) -> Any:
        """The same: no policy is trained anywhere else."""
        return self.contexts

    @property
    def judged(self) -> Any:
        """Contexts of the environments left, then of those held out."""
        split = self.engine.family.train(self.config.seed)
        return np.concatenate([self.contexts, split.contexts[[n in self.held_out for n in split.numbers]]])


@dataclass(frozen=True)
class Sweep:
    """What is searched: every combination of the options' values, for one method."""

    base: Config
    options: Mapping[str, Sequence[Any]]
    method: Method
    held_out: tuple[int, ...]

    @cached_property
    def combinations(self) -> list[dict[str, Any]]:
        """Values by option, one dictionary a trial."""
        return [dict(zip(self.options, values, strict=True)) for values in itertools.product(*self.options.values())]

    @cached_property
    def configs(self) -> list[Config]:
        """The configuration of each trial, checked."""
        return [with_options(self.base, chosen) for chosen in self.combinations]

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """What a trial has to make: the method's returns and whatever they come from."""
        made = {complete.NAME: complete.COMPLETE} if any(config.complete for config in self.configs) else {}
        return made | leading_to([returns_artefact(self.method.name)], recipes_for([self.method]))

    @cached_property
    def makers(self) -> list[dict[str, int]]:
        """For each trial and task, the trial that makes what it leaves: the first with the same options for it."""
        first: dict[tuple[str, str], int] = {}
        return [
            {name: first.setdefault((name, self._deciding(trial, name)), trial) for name in self.recipes}
            for trial in range(len(self.configs))
        ]

    def _deciding(self, trial: int, task: str) -> str:
        """The options that decide what a phase leaves, as text; a method is every trial's own."""
        if task not in MATTERS:
            return str(trial)
        data = to_dict(self.configs[trial])
        return json.dumps({name: data[name] for name in MATTERS[task]})

    def problem(self, config: Config) -> HeldOut:
        """A trial's configuration without the environments held out."""
        return HeldOut(config, held_out=self.held_out)

    @property
    def judged(self) -> str:
        """Where trials are judged, in words."""
        return f"judged in held-out training environments {', '.join(map(str, self.held_out))}"

    def budget(self) -> str:
        """What it will take, in words."""
        made = [(name, trial) for trial, makers in enumerate(self.makers) for name in makers if makers[name] == trial]
        count = Counter(name for name, _ in made)
        steps = sum(planned_steps(self.problem(self.configs[trial]), name) for name, trial in made)
        parts = [f"{len(self.configs)} trials of {self.method.name}"]
        parts += [f"{phase} {count[phase]} times" for phase in PHASES if phase in count]
        parts.append(f"{steps:,} environment steps of reinforcement learning".replace(",", " "))
        return f"{'; '.join(parts)}; {self.judged}"

    def description(self) -> dict[str, Any]:
        """Plain data for sweep.json."""
        return {
            "config": to_dict(self.base),
            "options": {name: list(values) for name, values in self.options.items()},
            "method": self.method.name,
            "held_out": list(self.held_out),
        }

    def run(self, folder: Path, command: str, say: Callable[[str], None], on_event: Listener, execute: Execute) -> Path:
        """Runs every trial that is missing and returns the table's path."""
        claim(folder, self.description())
        stores: list[RunStore] = []
        tasks: list[Task] = []
        for i, config in enumerate(self.configs):
            stores.append(make_trial(folder, i, config, command))
            planned = plan(stores[i], self.problem(config), [self.method], tuple(self.recipes))
            tasks += [task for task in planned if self.makers[i].get(whole_of(task.name)) == i]
        told: set[int] = set()

        def look() -> None:
            self._adopt(stores)
            done = [i for i, store in enumerate(stores) if store.has(returns_artefact(self.method.name))]
            if new := [i for i in done if i not in told]:
                best = write_table(folder, {i: (self.combinations[i], self.scores(stores[i])) for i in done})
                told.update(new)
                for i in new:
                    found, so_far = (in_words(self.combinations[trial]) for trial in (i, best))
                    say(f"trial {i + 1} of {len(stores)}: {found}; best so far: {so_far}")

        execute(tasks, on_event, look)
        return folder / "sweep.csv"

    def _adopt(self, stores: Sequence[RunStore]) -> None:
        """Takes over from earlier trials what does not differ, once it is there; the caller holds all locks."""
        for store, makers in zip(stores, self.makers, strict=True):
            for name, maker in makers.items():
                for leaf in self.recipes[name].leaves:
                    if stores[maker] is not store and stores[maker].has(leaf) and not store.has(leaf):
                        store.adopt(leaf, stores[maker])

    def scores(self, store: RunStore) -> Sequence[float]:
        """`SCORES` of a trial that is done."""
        held, name = len(self.held_out), returns_artefact(self.method.name)
        played, where = store.load_arrays(name), f"artefact {name!r} in {store.folder}"
        require_axes(where, played, {"honest": AXES["returns"]}, ("honest",))
        returns = played["honest"].mean(axis=2)  # [S, E]
        per_seed = returns[:, -held:].mean(axis=1)
        seconds = sum(store.info(a).get("seconds") or 0.0 for a in store.names("") if "-stage-" not in a)
        return float(per_seed.mean()), float(per_seed.std()), float(returns[:, :-held].mean()), seconds


def make_trial(folder: Path, number: int, config: Config, command: str) -> RunStore:
    """The run of a trial, by its number from 0."""
    trial = folder / "trials" / f"{number + 1:03d}"
    for place in (trial.parent, trial):
        if place.is_symlink():
            raise RunError(f"{place} is a symbolic link, expected a folder: nothing is written through links")
    return RunStore.create(trial, to_dict(config), command)


def write_table(folder: Path, rows: Mapping[int, tuple[Mapping[str, Any], Sequence[float]]]) -> int:
    """Writes sweep.csv and returns the number of the best trial.

    Rows are a trial's options and its `SCORES`, none where it was given up.
    """
    best = max(rows, key=lambda i: rows[i][1][0] if rows[i][1] else float("-inf"))
    options = next(iter(rows.values()))[0]
    table: list[Sequence[Any]] = [("trial", *options, *SCORES, "best")]
    for i, (chosen, numbers) in rows.items():
        cells = [f"{number:.6g}" for number in numbers] or [""] * len(SCORES)
        table.append((i + 1, *chosen.values(), *cells, "yes" if i == best and numbers else ""))
    write_file(folder / "sweep.csv", to_csv(table).encode())
    return best


def in_words(chosen: Mapping[str, Any]) -> str:
    """A trial's options, for people."""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in chosen.items()
    )


def problem_of(store: RunStore) -> Problem:
    """The problem of a run, which may be a trial of a sweep."""
    config, file = from_dict(store.config), store.folder.resolve().parent.parent / SWEEP
    if not file.is_file():
        return Problem(config)
    advice = "use another --out"
    description = read_json(file, advice)
    require_fields(description, {"held_out": (list,)}, file, advice)
    return HeldOut(config, held_out=tuple(description["held_out"]))


def make_sweep(
    base: Config,
    options: Mapping[str, Sequence[str]],
    method: str,
    held_out: Sequence[int],
    ranges: bool = False,
) -> Sweep:
    """A sweep from words of the command line; every combination is checked before anything runs.

    An option without values gets those of appendix C.
    """
    found = {name: [parsed(v) for v in values] or APPENDIX_C.get(name, ()) for name, values in options.items()}
    if not found and not ranges:
        raise ConfigError("nothing to search: give --option NAME VALUE ..., or NAME alone for appendix C's values")
    for name, values in found.items():
        if not values:
            known = ", ".join(APPENDIX_C)
            raise ConfigError(f"option {name} has no values, expected some, or an option of appendix C: {known}")
    if method not in METHODS or method == "ppo-env":
        expected = ", ".join(name for name in METHODS if name != "ppo-env")
        raise ConfigError(f"method {method!r} cannot be searched for, expected one of: {expected}")
    numbers = Problem(base).engine.family.train(base.seed).numbers
    chosen = tuple(held_out) or _middle(numbers)
    if not set(chosen) < set(numbers):
        raise ConfigError(
            f"held-out environments {', '.join(map(str, chosen))}, expected some but not all of the training "
            f"environments {', '.join(map(str, numbers))}"
        )
    sweep = Sweep(base, found, METHODS[method], chosen)
    for combination in sweep.combinations:
        with_options(base, combination)  # or it raises
    return sweep


def parsed(word: str) -> Any:
    """A value from the command line."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def _middle(numbers: Sequence[int]) -> tuple[int, ...]:
    """A fifth of the environments, from the middle of the list: neighbours, as the test environments are."""
    count = max(len(numbers) // 5, 1)
    first = (len(numbers) - count) // 2
    return tuple(numbers[first : first + count])


def claim(folder: Path, description: dict[str, Any]) -> None:
    """Makes the folder this sweep's own, or raises when it is another's."""
    path, data = folder / SWEEP, to_json(description)
    require_own_or_empty(folder, SWEEP, "the folder of a sweep")
    if path.is_file() and read_json(path, "use another --out") != json.loads(data):
        raise RunError(f"{folder} belongs to a sweep with other options: use another --out")
    write_file(path, data)
