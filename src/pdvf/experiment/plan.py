"""What there is to do in a run: tasks that need artefacts and leave others.

Phases say in `paper.pipeline.PHASES` what they need and leave, methods in `Method.needs`. `plan` makes tasks of them,
each after those it needs; an executor (`executors`) runs them.

    complete                synthesises environments, which everything else has among those for training
    train, collect, ...     a phase; `bound` trains PPOenv's policies
    NAME                    the training of a method, which leaves agent-NAME
    train-part-1, ...       some policies of phase 1, or some seeds of a method, which `train` or NAME then joins
    returns-NAME            its episodes, which leave returns-NAME
    adaptation-NAME         other episodes of a method that infers the dynamics, which leave adaptation-NAME
    returns, report         returns.csv; figures and report.html: written each time, after everything before them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from pdvf.core.staged import OneStage, Staged
from pdvf.experiment.adaptation import ADAPTATION, adaptation_artefact, measure
from pdvf.experiment.comparison import evaluate, find_methods, method_key, method_named, write_returns
from pdvf.experiment.cost import environment_steps
from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Listener, tell_all, write_event
from pdvf.experiment.scalars import TensorBoard
from pdvf.experiment.stages import finished, run_phase
from pdvf.experiment.store import RunStore
from pdvf.methods import METHODS, Method, agent_artefact, complete
from pdvf.methods.base import AGENT, RETURNS, returns_artefact
from pdvf.paper.pipeline import PHASES, ArtefactShapes, Problem, Recipe
from pdvf.rl.ensemble import Joined, Part

TABLE, REPORT = "returns", "report"
PART = "-part-"
EVERYTHING = (*PHASES, TABLE, REPORT)
EVALUATED = tuple(name for name, method in METHODS.items() if method.every_run)
"""Methods that the phase `evaluate` plays: the run has all that they need."""


@dataclass(frozen=True, eq=False)
class Task:
    """Something to make in a run's folder, once the artefacts that it needs are there."""

    store: RunStore
    name: str
    needs: tuple[str, ...]
    leaves: tuple[str, ...]
    make: Callable[[], Staged[Any]]
    """Loads what it needs."""
    priority: int = 2
    """0: everything else in the run waits for it; 1 goes before 2 where both can go."""

    @property
    def gpus(self) -> float:
        """The share of a GPU that it keeps busy, where there is one: phase 1 all of it, small programs little."""
        return (1.0, 0.5, 0.125)[self.priority]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.store.folder.name} {self.name}"

    @property
    def log(self) -> Path:
        """What its process says, where it has one."""
        return self.store.folder / "logs" / f"{self.name}.log"

    @property
    def ready(self) -> bool:
        """Whether everything it needs is there."""
        return all(self.store.has(name) for name in self.needs)

    @property
    def done(self) -> bool:
        """Whether everything it leaves is there; one that leaves nothing is never done."""
        return bool(self.leaves) and all(self.store.has(name) for name in self.leaves)

    def run(self, on_event: Listener) -> None:
        """Makes what it leaves, unless that is there; whoever calls this holds the run's lock."""
        store = self.store
        if self.leaves and finished(store, self.name, self.leaves):
            return
        for maker, phase in PHASES.items():
            for needed in self.needs:
                if needed in phase.leaves and not store.has(needed):
                    raise RunError(
                        f"{store.folder} has no artefact {needed!r}, which `pdvf {self.name}` needs: "
                        f"run `pdvf {maker} {store.folder}` first"
                    )

        with closing(TensorBoard(store.folder)) as curves:
            tell = tell_all((partial(write_event, store.folder), curves, on_event))
            run_phase(store, self.make(), self.leaves, self.needs, tell)


def may_start(task: Task, left: Sequence[Task]) -> bool:
    """Whether a task's needs are there and nothing that is left to do goes before it.

    Methods wait for phase 1 even where they do not need it: everything else waits for it, and a GPU that trains its
    policies has no room to spare, unlike in the phases that follow. What leaves no artefact comes last, in order.
    """
    ours = [other for other in left if other is not task and other.store.folder == task.store.folder]
    if not task.leaves:
        return not any(other.leaves or left.index(other) < left.index(task) for other in ours)
    return task.ready and (task.priority == 0 or not any(other.priority == 0 for other in ours))


def plan(
    store: RunStore, problem: Problem, methods: Sequence[Method] = (), phases: Sequence[str] = EVERYTHING
) -> list[Task]:
    """The tasks of phases and methods of a run, each after those whose artefacts it needs.

    Args:
        store: the run.
        problem: its configuration with family and engine.
        methods: what is trained and played; methods whose agents they need come before them.
        phases: some of `EVERYTHING`; what these need and is not among them must be there already.
    """
    if "evaluate" in phases:
        methods, phases = (*(METHODS[name] for name in EVALUATED), *methods), ("bound", *phases)
    recipes, first, before = cut(problem, recipes_for(methods, phases)), "train", ()
    if problem.config.complete and (recipes or complete.NAME in phases):
        first, before = complete.NAME, complete.COMPLETE.leaves
        recipes = {first: complete.COMPLETE, **recipes}
    shapes = ArtefactShapes(problem, PHASES | recipes)

    def task(name: str, recipe: Recipe) -> Task:
        def make() -> Staged[Any]:
            whole = problem_of(store, problem)
            known = shapes if whole is problem else ArtefactShapes(whole, PHASES | recipes)
            return recipe.make(whole, *(store.load(needed, known[needed]) for needed in recipe.needs))

        needs = recipe.needs if name == complete.NAME else (*recipe.needs, *before)
        priority = 0 if whole_of(name) == first else 1 if name in PHASES else 2
        return Task(store, name, needs, recipe.leaves, make, priority)

    def write_report() -> None:
        from pdvf.reports import write_report  # slow to import

        write_report(store, environment_steps(store))

    def files(name: str, write: Callable[[], None]) -> Task:
        return Task(store, name, (), (), lambda: OneStage(name, lambda: (write() or {}, {})))

    tasks = [task(name, recipe) for name, recipe in recipes.items()]
    last = {TABLE: lambda: write_returns(store, problem_of(store, problem)), REPORT: write_report}
    return tasks + [files(name, write) for name, write in last.items() if name in phases]


def problem_of(store: RunStore, problem: Problem) -> Problem:
    """The problem of a run, with its synthesised environments once they are there."""
    if not problem.config.complete or not store.has(complete.COMPLETION):
        return problem
    shapes = ArtefactShapes(problem, {complete.NAME: complete.COMPLETE})
    return complete.completed(problem, store.load(complete.COMPLETION, shapes[complete.COMPLETION]))


def find_task(store: RunStore, problem: Problem, name: str) -> Task:
    """One task of a run by its name."""
    base = whole_of(name)
    own = base.removeprefix(RETURNS).removeprefix(ADAPTATION)
    methods = [] if base in (complete.NAME, *EVERYTHING) else find_methods((own,))
    return next(task for task in plan(store, problem, methods, (base,)) if task.name == name)


def cut(problem: Problem, recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Recipes of ensembles in as many parts as the configuration says, each followed by the one that joins them."""
    found: dict[str, Recipe] = {}
    for name, recipe in recipes.items():
        count = min(problem.config.shards, recipe.most_parts(problem))
        found |= {name: recipe} if count == 1 else _cut(name, recipe, count)
    return found


def whole_of(name: str) -> str:
    """The task that a part belongs to; any other is one by itself."""
    return name.partition(PART)[0]


def _cut(name: str, recipe: Recipe, count: int) -> dict[str, Recipe]:
    names = tuple(f"{name}{PART}{i + 1}" for i in range(count))

    def part(i: int) -> Recipe:
        def make(problem: Problem, *inputs: Any) -> Part:
            ensemble = recipe.make(problem, *inputs)
            first, end = (ensemble.rows * edge // count for edge in (i, i + 1))
            return Part(names[i], ensemble, first, end)

        def untrained(problem: Problem) -> Any:
            with jax.disable_jit():  # options of a compiler have no place in a trace
                return make(problem).start()

        return Recipe(make, recipe.needs, {names[i]: untrained})

    def join(problem: Problem, *inputs: Any) -> Joined:
        own = len(recipe.needs)
        return Joined(recipe.make(problem, *inputs[:own]), inputs[own:])

    whole = Recipe(join, (*recipe.needs, *names), recipe.untrained)
    return {names[i]: part(i) for i in range(count)} | {name: whole}


def phases_for(methods: Sequence[Method]) -> tuple[str, ...]:
    """The phases that methods rest on, directly or not."""
    agents = [agent_artefact(method.name) for method in methods]
    return tuple(name for name in leading_to(agents, recipes_for(methods)) if name in PHASES)


def recipes_for(methods: Sequence[Method], phases: Sequence[str] = tuple(PHASES)) -> dict[str, Recipe]:
    """How phases and methods are made, by the name of the task, each after those it needs.

    A method that only another one needs is trained and not played.
    """
    recipes = {name: recipe for name, recipe in PHASES.items() if name in phases}
    given = {method.name: method for method in methods}

    def add(method: Method) -> None:
        needs = method.needs
        for needed in needs:
            if needed.startswith(AGENT):
                name = needed.removeprefix(AGENT)
                add(given.get(name) or method_named(name))

        def train(problem: Problem, *inputs: Any) -> Staged[Any]:
            return method.train(problem, dict(zip(needs, inputs, strict=True)), method_key(problem, method))

        seeds = (lambda problem: problem.config.policy_seeds) if method.ensemble else (lambda problem: 1)
        recipes.setdefault(method.name, Recipe(train, needs, {agent_artefact(method.name): method.skeleton}, seeds))

    def add_episodes(method: Method, artefact: str, play: Callable[[Problem, Method, Any], Staged[Any]]) -> None:
        needs = (agent_artefact(method.name),)
        recipes[artefact] = Recipe(lambda problem, agents: play(problem, method, agents), needs, {artefact: None})

    for method in methods:
        add(method)
        add_episodes(method, returns_artefact(method.name), evaluate)
        if method.adapting:
            add_episodes(method, adaptation_artefact(method.name), measure)
    return recipes


def leading_to(artefacts: Iterable[str], recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Those among recipes that artefacts come from, directly or not."""
    wanted, found = {*artefacts}, {}
    for name, recipe in reversed(list(recipes.items())):
        if wanted & {*recipe.leaves}:
            wanted |= {*recipe.needs}
            found = {name: recipe, **found}
    return found


@contextmanager
def locks(tasks: Sequence[Task]) -> Iterator[list[int]]:
    """Holds the locks of all runs that tasks write to."""
    with ExitStack() as stack:
        stores = {task.store.folder: task.store for task in tasks}
        yield [stack.enter_context(store.lock()) for store in stores.values()]
