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

from pdvf.config import ConfigError, flatten, from_dict, to_dict, with_options
from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Event, Listener
from pdvf.experiment.files import read_json, require_fields, to_json, write_file
from pdvf.experiment.plan import plan
from pdvf.experiment.store import RunStore
from pdvf.experiment.sweep import Execute, Sweep, claim, in_words, make_trial, parsed, write_table
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
        return f"{self.trials} trials of {self.sweep.method.name}; {self.sweep.judged}"

    def run(self, folder: Path, command: str, say: Callable[[str], None], on_event: Listener, execute: Execute) -> Path:
        """Runs every trial that is missing and returns the table's path."""
        optuna = library()
        ranges = {name: list(ends) for name, ends in self.ranges.items()}
        claim(folder, self.sweep.description() | {"sampler": "tpe", "ranges": ranges})
        rows: dict[int, tuple[Mapping[str, Any], Sequence[float]]] = {}

        def play(trial: Any) -> float:
            chosen = self._propose(trial)
            rows[trial.number] = chosen, ()
            store = make_trial(folder, trial.number, with_options(self.sweep.base, chosen), command)
            scores = watched_scores(self.sweep, store, trial, on_event, execute)
            rows[trial.number] = chosen, scores
            return scores[0]

        def tell(study: Any, trial: Any) -> None:
            best, (chosen, scores) = write_table(folder, rows), rows[trial.number]
            got = f"{scores[0]:.4g}" if scores else "given up"
            so_far = f"best so far: {in_words(rows[best][0])}"
            say(f"trial {trial.number + 1} of {self.trials}: {in_words(chosen)}: {got}; {so_far}")

        sampler = optuna.samplers.TPESampler(seed=self.sweep.base.seed % 2**32)
        optuna.create_study(direction="maximize", sampler=sampler).optimize(play, self.trials, callbacks=[tell])
        return folder / "sweep.csv"

    def _propose(self, trial: Any) -> dict[str, Any]:
        found = {name: trial.suggest_categorical(name, list(values)) for name, values in self.sweep.options.items()}
        usual = dict(flatten(to_dict(self.sweep.base)))
        for name, (low, high) in self.ranges.items():
            suggest = trial.suggest_int if isinstance(usual[name], int) else trial.suggest_float
            found[name] = suggest(name, low, high, log=low > 0 and high >= 10 * low)
        return found


def watched_scores(sweep: Sweep, store: RunStore, trial: Any, on_event: Listener, execute: Execute) -> Sequence[float]:
    """Makes a trial, watched between the stages of the method's own training; raises where it is given up."""
    given_up, file, method = library().TrialPruned, store.folder / NOTES, sweep.method
    values, over = noted(file)
    for stage, value in values.items():
        trial.report(value, int(stage))
    if over:
        raise given_up
    wanted, problem = returns_artefact(method.name), sweep.problem(from_dict(store.config))
    planned = plan(store, problem, [method], tuple(sweep.recipes))
    training = next(task for task in planned if task.name == method.name)
    contexts, key = jnp.asarray(problem.judged[-len(sweep.held_out) :]), problem.key(Stream.COMPARISON)

    @jax.jit
    def mean_return(agents: Any) -> Any:
        episodes = problem.config.evaluate.episodes
        return jnp.mean(play_everywhere(problem.engine, agents, contexts, episodes, method.privileged, key)["honest"])

    def watch(event: Event) -> None:
        on_event(event)
        latest = store.latest_stage(training.name)
        if (event.kind, event.task) != ("stage", training.name) or latest is None or latest[0] != event.stage:
            return
        phase = training.make()
        state = store.load(latest[1], jax.eval_shape(phase.start))
        values[str(event.stage)] = value = float(mean_return(phase.finish(state)[agent_artefact(method.name)]))
        trial.report(value, event.stage)
        over = trial.should_prune()
        write_file(file, to_json({"values": values, "given_up": over}))
        if over:
            raise given_up(f"below the median of earlier trials after stage {event.stage}")

    execute([task for task in planned if task.name == wanted or not task.name.startswith(RETURNS)], watch)
    return sweep.scores(store)


def noted(file: Path) -> tuple[dict[str, float], bool]:
    """What is known of a trial: returns by stage, and whether it was given up."""
    if not file.is_file():
        return {}, False
    advice = "delete the folder of the trial"
    notes = read_json(file, advice)
    require_fields(notes, {"values": (dict,), "given_up": (bool,)}, file, advice)
    require_fields(notes["values"], dict.fromkeys(notes["values"], (int, float)), file, advice)
    if not all(stage.isdecimal() for stage in notes["values"]):
        raise RunError(f"{file}: 'values' has names that are no stages: {advice}")
    return notes["values"], notes["given_up"]


def make_search(sweep: Sweep, ranges: Sequence[Sequence[str]], trials: int) -> Search:
    """A search from words of the command line."""
    library()
    usual, found = dict(flatten(to_dict(sweep.base))), dict[str, tuple[float, float]]()
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
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
