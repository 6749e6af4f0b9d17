"""A search over options by Optuna's TPE sampler, which proposes each trial from what those before it have returned.

As in `sweep`, some neighbouring training environments are held out of everything that learns, and judge. Methods that
train in stages are also judged there between stages, and a trial below the median of those before it is given up.

    SWEEP/trials/NNN/held_out.json    mean held-out return after each stage, and whether the trial was given up

What is proposed follows from the seed and from these returns, so a search that was stopped goes on to the same trials;
with more trials given it goes on after the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pdvf.config import ConfigError, to_dict, with_options
from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Event, Listener
from pdvf.experiment.executors import EXECUTORS
from pdvf.experiment.files import flatten, read_json, require_fields, to_csv, to_json, write_file
from pdvf.experiment.plan import Task, plan
from pdvf.experiment.store import RunStore
from pdvf.experiment.sweep import HeldOut, Sweep, claim, parsed, trial_store
from pdvf.methods import play_everywhere
from pdvf.methods.base import RETURNS, agent_artefact, returns_artefact
from pdvf.paper.problem import Stream

NOTES = "held_out.json"


@dataclass(frozen=True)
class Search:
    """What is searched: choices among values (`sweep.options`) and ranges [low, high], by the option's name."""

    sweep: Sweep
    ranges: Mapping[str, tuple[float, float]]
    trials: int

    def budget(self) -> str:
        """What it will take, in words."""
        numbers = ", ".join(map(str, self.sweep.held_out))
        return f"{self.trials} trials of {self.sweep.method.name}; judged in held-out training environments {numbers}"

    def run(self, folder: Path, command: str, on_event: Listener, say: Callable[[str], None]) -> Path:
        """Runs every trial that is missing and returns the table's path."""
        optuna = library()
        ranges = {name: list(ends) for name, ends in self.ranges.items()}
        claim(folder, self.sweep.description() | {"sampler": "tpe", "ranges": ranges})
        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=self.sweep.base.seed % 2**32)
        )
        rows: list[tuple[dict[str, Any], float | None]] = []
        for i in range(self.trials):
            trial = study.ask()
            chosen = self._propose(trial)
            store = trial_store(folder, i + 1, with_options(self.sweep.base, chosen), command)
            try:
                value = _Trial(self.sweep, store, trial, optuna.TrialPruned).run(on_event)
                study.tell(trial, value)
            except optuna.TrialPruned:
                value = None
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            rows.append((chosen, value))
            best = self._write(folder, rows)
            got = "given up" if value is None else f"{value:.4g}"
            say(f"trial {i + 1} of {self.trials}: {_words(chosen)}: {got}; best so far: {_words(rows[best][0])}")
        return folder / "sweep.csv"

    def _propose(self, trial: Any) -> dict[str, Any]:
        found = {name: trial.suggest_categorical(name, list(values)) for name, values in self.sweep.options.items()}
        usual = flatten(to_dict(self.sweep.base))
        for name, (low, high) in self.ranges.items():
            suggest = trial.suggest_int if isinstance(usual[name], int) else trial.suggest_float
            found[name] = suggest(name, low, high, log=low > 0 and high >= 10 * low)
        return found

    def _write(self, folder: Path, rows: Sequence[tuple[dict[str, Any], float | None]]) -> int:
        """Writes sweep.csv and returns the best trial's place."""
        best = max(range(len(rows)), key=lambda i: float("-inf") if (value := rows[i][1]) is None else value)
        table: list[Sequence[Any]] = [("trial", *rows[0][0], "held_out_return", "best")]
        for i, (chosen, value) in enumerate(rows):
            got = "" if value is None else f"{value:.6g}"
            table.append((i + 1, *chosen.values(), got, "yes" if i == best and value is not None else ""))
        write_file(folder / "sweep.csv", to_csv(table).encode())
        return best


class _Trial:
    """One trial of a study: its tasks, watched between the stages of the method's own training."""

    def __init__(self, sweep: Sweep, store: RunStore, trial: Any, given_up: type[Exception]):
        self._sweep, self._store, self._trial, self._given_up = sweep, store, trial, given_up
        self._problem = HeldOut(with_options(sweep.base, trial.params), held_out=sweep.held_out)
        self._file = store.folder / NOTES
        self._values: dict[str, float] = {}
        self._over = False
        if self._file.is_file():
            advice = "delete the folder of the trial"
            noted = read_json(self._file, advice)
            require_fields(noted, {"values": (dict,), "given_up": (bool,)}, self._file, advice)
            require_fields(noted["values"], dict.fromkeys(noted["values"], (int, float)), self._file, advice)
            if not all(stage.isdecimal() for stage in noted["values"]):
                raise RunError(f"{self._file}: 'values' has names that are no stages: {advice}")
            self._values, self._over = noted["values"], noted["given_up"]

    def run(self, on_event: Listener) -> float:
        """The mean return in held-out environments; raises where the trial is given up."""
        for stage, value in self._values.items():
            self._trial.report(value, int(stage))
        if self._over:
            raise self._given_up
        method, wanted = self._sweep.method, returns_artefact(self._sweep.method.name)
        planned = plan(self._store, self._problem, [method], tuple(self._sweep.recipes))
        tasks = [task for task in planned if task.name == wanted or not task.name.startswith(RETURNS)]
        training = next(task for task in planned if task.name == method.name)
        EXECUTORS["serial"](tasks, self._watched(training, on_event))
        return float(self._store.load_arrays(wanted)["honest"][:, -len(self._sweep.held_out) :].mean())

    def _watched(self, training: Task, on_event: Listener) -> Listener:
        held, method = len(self._sweep.held_out), self._sweep.method
        engine, episodes = self._problem.engine, self._problem.config.evaluate.episodes
        contexts, key = jnp.asarray(self._problem.judged[-held:]), self._problem.key(Stream.COMPARISON)

        @jax.jit
        def held_out_return(agents: Any) -> Any:
            return jnp.mean(play_everywhere(engine, agents, contexts, episodes, method.privileged, key)["honest"])

        def watch(event: Event) -> None:
            on_event(event)
            latest = self._store.latest_stage(training.name)
            if (event.kind, event.task) != ("stage", training.name) or latest is None or latest[0] != event.stage:
                return
            phase = training.make()
            state = self._store.load(latest[1], jax.eval_shape(phase.start))
            value = float(held_out_return(phase.finish(state)[agent_artefact(method.name)]))
            self._trial.report(value, event.stage)
            self._values[str(event.stage)] = value
            self._over = self._trial.should_prune()
            write_file(self._file, to_json({"values": self._values, "given_up": self._over}))
            if self._over:
                raise self._given_up(f"below the median of earlier trials after stage {event.stage}")

        return watch


def make_search(sweep: Sweep, ranges: Sequence[Sequence[str]], trials: int) -> Search:
    """A search from words of the command line."""
    library()
    usual, found = flatten(to_dict(sweep.base)), dict[str, tuple[float, float]]()
    for name, *ends in ranges:
        low, high = map(parsed, ends)
        kinds = (int,) if type(usual.get(name)) is int else (int, float)
        if type(usual.get(name)) not in (int, float):
            raise ConfigError(f"--range {name}: expected an option that is a number, such as ppo.learning_rate")
        if type(low) not in kinds or type(high) not in kinds or not low < high:
            raise ConfigError(
                f"--range {name} is {ends[0]} to {ends[1]}, expected two {kinds[-1].__name__}s, low first"
            )
        found[name] = low, high
        for end in found[name]:
            with_options(sweep.base, {name: end})  # or it raises
    if trials < 1:
        raise ConfigError(f"--trials is {trials}, expected at least 1")
    return Search(sweep, found, trials)


def library() -> Any:
    """The package optuna, or one line on how to get it."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ConfigError("the sampler tpe needs the package optuna: pip install 'pdvf[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _words(chosen: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in chosen.items()
    )
