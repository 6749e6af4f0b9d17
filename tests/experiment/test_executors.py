"""What runs a plan: in this process, or each task in a process of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import pdvf.core.devices
from pdvf.cli.main import main
from pdvf.cli.shared import Execution, make_plan
from pdvf.config import to_dict
from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Event, Follower, write_event
from pdvf.experiment.executors import EXECUTORS, processes
from pdvf.experiment.plan import Task, find_task, locks, plan, problem_of
from pdvf.experiment.progress import ignore, words
from pdvf.experiment.store import RunStore
from pdvf.methods import METHODS, AtOnce
from pdvf.methods.complete import learn_completion
from pdvf.paper.pipeline import PHASES, Problem
from tiny import TINY, relaxed

CHOSEN = [METHODS[name] for name in ("pd-vf", "ppo-all", "oracle", "rma", "nn")]


class Process:
    """Stands for a process: it leaves its artefacts when somebody looks for the second time."""

    stdin = None

    def __init__(self, task: Task, returncode: int) -> None:
        self.task, self.returncode, self.looks, self.ended = task, returncode, 0, False
        self.tell("start")

    def tell(self, kind: str) -> None:
        write_event(self.task.store.folder, Event(0.0, "spaceship", self.task.name, kind, stages=1))

    def poll(self) -> int | None:
        self.looks += 1
        if self.looks < 2:
            return None
        if not self.ended and not self.returncode:
            for name in self.task.leaves:
                self.task.store.save(name, {"x": np.zeros(1)})
            self.tell("finish")
        self.ended = True
        return self.returncode

    def terminate(self) -> None:
        self.returncode = -15

    def wait(self) -> None:
        self.ended = True


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    monkeypatch.setattr(pdvf.core.devices, "use_all_cores", lambda devices=None: None)


@pytest.fixture
def store(tmp_path):
    return RunStore.create(tmp_path / "spaceship", to_dict(TINY), "pdvf")


@pytest.fixture
def started(monkeypatch):
    """Tasks in the order of their start; those whose name is in `broken` fail."""
    tasks: list[Task] = []
    broken: set[str] = set()
    started: list[Process] = []

    def start(task, locks, quiet):
        assert locks
        assert task.ready
        tasks.append(task)
        task.log.parent.mkdir(exist_ok=True)
        task.log.write_text("first line\nout of memory\n")
        started.append(Process(task, int(task.name in broken)))
        return started[-1]

    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setattr(processes, "PAUSE", 0.0)
    return tasks, broken, started


def tiny_plan(store: RunStore, methods=CHOSEN) -> list[Task]:
    return plan(store, Problem(TINY), methods)


def test_a_method_that_another_needs_is_made_first(store):
    tasks = {task.name: task for task in plan(store, Problem(TINY), [METHODS["rma"]], ("train",))}
    assert list(tasks) == ["train", "oracle", "rma", "returns-rma"]  # nobody asked how Oracle plays
    assert tasks["rma"].needs == tasks["oracle"].leaves == ("agent-oracle",)
    assert tasks["returns-rma"].needs == tasks["rma"].leaves == ("agent-rma",)


PHASES_OF = {
    "pd-vf-plus ppo-all": (),
    "rma": (),
    "best-single": ("train",),
    "kmeans ppo-dyn no-agg-policy": ("train", "collect", "embed"),
    "pd-vf nn": ("train", "collect", "embed", "fit"),
    "ppo-env": ("train", "bound"),
}


@pytest.mark.parametrize("names", PHASES_OF)
def test_a_comparison_makes_what_its_methods_rest_on(names, tmp_path):
    tasks = make_plan(tmp_path / "run", TINY, "pdvf", methods=names.split())
    trained = {"oracle"} if names == "rma" else set()
    played = {f"returns-{name}" for name in names.split()}
    asked = {f"adaptation-{name}" for name in names.split() if METHODS[name].adapting}
    made = {*PHASES_OF[names], *names.split(), *trained, *played, *asked}
    assert {task.name for task in tasks} == {*made, "returns", "report"}


def test_a_comparison_of_everything_is_a_run_with_more_methods(tmp_path):
    """The figures of `run` with the methods that it plays; `compare` has all methods."""
    run, compare = (make_plan(tmp_path / "run", TINY, "pdvf", methods=methods) for methods in (None, ()))
    assert {task.name for task in run} == {
        *PHASES,
        *(f"{kind}{name}" for name in ("pd-vf", "nn", "ppo-env") for kind in ("", "returns-")),
        *("adaptation-pd-vf", "returns", "report"),
    }
    assert {task.name for task in compare} == {
        *(task.name for task in run),
        *(f"{kind}{name}" for name in METHODS for kind in ("", "returns-")),
        "adaptation-pd-vf-plus",
    }


@pytest.fixture
def completing(tmp_path):
    config = replace(TINY, complete=2)
    return RunStore.create(tmp_path / "spaceship", to_dict(config), "pdvf"), Problem(config)


def test_synthesised_environments_come_before_everything(completing, started):
    tasks = plan(*completing, [METHODS["nn"]])
    assert (tasks[0].name, tasks[0].leaves) == ("complete", ("completion",))
    assert all("completion" in task.needs for task in tasks[1:] if task.leaves)
    assert processes.run(tasks, ignore, 3) == []
    assert started[0][0].name == "complete"
    assert [task.name for task in plan(*completing, (), ("report",))] == ["report"]
    assert find_task(*completing, "complete").leaves == ("completion",)


def test_tasks_see_synthesised_environments(completing):
    store, problem = completing
    with relaxed():
        training = learn_completion(problem)
        state = training.start()
        (made,) = training.finish(state._replace(share=state.share + 0.1)).values()
        store.save("completion", made)
        train = find_task(store, problem, "train").make()
        assert train.given.shape == (3 + 2, 1 + 2)  # pyright: ignore
        assert problem_of(store, problem).engine.family.train(0).numbers == (1, 2, 3, 5, 6)
    assert problem.contexts.shape == (3, 1)


def test_every_need_is_left_by_an_earlier_task(store):
    tasks = plan(store, Problem(TINY), list(METHODS.values()))
    left: set[str] = set()
    for task in tasks:
        assert left >= set(task.needs), task.name
        left |= set(task.leaves)
    adapting = sum(method.adapting for method in METHODS.values())
    assert len({task.name for task in tasks}) == len(tasks) == len(PHASES) + 2 * len(METHODS) + adapting + 2


def test_everything_is_done_as_soon_as_it_can_be(store, started):
    tasks = tiny_plan(store)
    events: list[Event] = []
    assert processes.run(tasks, events.append, 3) == []
    names = [task.name for task in started[0]]
    assert sorted(names) == sorted(task.name for task in tasks)
    assert names[:4] == ["train", "collect", "bound", "ppo-all"]  # methods wait for phase 1, whatever they need
    assert names.index("rma") > names.index("oracle")
    assert names.index("fit") < names.index("nn") < names.index("returns-nn")
    assert names[-2:] == ["returns", "report"]  # one after the other
    assert words(events[0]) == "train: begins"
    assert "report: done in 0.0 s" in [words(event) for event in events]


@pytest.mark.parametrize(("given", "train", "method"), [({}, "0", "1"), ({processes.PRIORITY: "1"}, "1", "1")])
def test_phases_go_before_methods_on_a_shared_gpu(store, monkeypatch, given, train, method):
    seen: dict[str, dict[str, str]] = {}
    monkeypatch.delenv(processes.PRIORITY, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes.subprocess, "Popen", lambda command, env, **rest: seen.update({command[-1]: env}))
    for task in tiny_plan(store):
        processes.start(task, (), quiet=False)
    assert seen["train"][processes.PRIORITY] == train
    assert seen["nn"][processes.PRIORITY] == method
    assert seen["nn"]["PATH"] == processes.os.environ["PATH"]


def test_no_more_than_so_many_at_a_time(store, started):
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, sum(not process.ended for process in started[2]))

    processes.run(tiny_plan(store), ignore, 2, tick=look)
    assert most == 2


def test_what_is_done_is_left_alone(store, started):
    for name in (*PHASES["train"].leaves, "agent-ppo-all", "returns-ppo-all"):
        store.save(name, {"x": np.zeros(1)})
    processes.run(tiny_plan(store), ignore)
    assert not {"train", "ppo-all"} & {task.name for task in started[0]}


def test_a_task_that_fails_holds_up_only_what_needs_it(store, started):
    started[1].add("oracle")
    events: list[Event] = []
    undone = processes.run(tiny_plan(store), events.append, 2)
    assert [task.name for task in undone] == ["oracle", "returns-oracle", "rma", "returns-rma", "returns", "report"]
    assert store.has("returns-nn")
    (failure,) = (event for event in events if event.kind == "fail")
    assert words(failure) == f"oracle: failed after 0.0 s; out of memory (all of it: {store.folder}/logs/oracle.log)"


def test_what_is_not_done_is_said_with_its_reason(store, started, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    started[1].add("oracle")
    said = (
        r"6 of \d+ tasks are not done; oracle: out of memory \(all of it: .*oracle.log\). The same command tries again"
    )
    with pytest.raises(RunError, match=said):
        Execution(workers=2, quiet=True).run(tiny_plan(store), ignore)


def test_stages_of_finished_tasks_are_removed(store, started):
    """A kill after the last artefact and before the stages are removed leaves one."""
    tasks = tiny_plan(store, [METHODS["ppo-all"]])
    for run in EXECUTORS.values():
        for task in tasks:
            for name in task.leaves:
                store.save(name, {"x": np.zeros(1)})
        for name in ("train", "ppo-all", "returns-ppo-all"):
            store.save_stage(name, 1, {"x": np.zeros(1)})
        run([task for task in tasks if task.leaves], ignore)
        assert not list(store.folder.rglob("*-stage-*"))
    assert not started[0]


def test_a_log_is_not_written_through_a_link(store, tmp_path, monkeypatch):
    monkeypatch.setattr(processes.subprocess, "Popen", lambda *words, **more: None)
    train = find_task(store, Problem(TINY), "train")
    (tmp_path / "outside").write_text("precious")
    train.log.parent.mkdir()
    train.log.symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match="a symbolic link, which is not followed"):
        processes.start(train, (), quiet=False)
    assert (tmp_path / "outside").read_text() == "precious"


def test_an_interruption_ends_the_processes(store, started):
    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        processes.run(tiny_plan(store), interrupt, 3)
    assert [process.returncode for process in started[2]] == [-15]
    with store.lock():
        pass  # nobody holds it any more


def test_a_real_process(store):
    train = find_task(store, Problem(TINY), "train")
    events: list[Event] = []
    assert processes.run([train], events.append, 2) == []
    assert [event.kind for event in events] == ["start", "stage", "stage", "finish"]
    assert {event.task for event in events} == {"train"}
    store.verify("policies")
    assert "train: done in" in train.log.read_text()
    for name in train.leaves:
        store.remove(name)
    train.log.unlink()
    assert processes.run([train], ignore, quiet=True) == []
    assert "train:" not in train.log.read_text()


def test_what_is_wrong_is_said_and_kept(store):
    collect, complaint = (
        find_task(store, Problem(TINY), "collect"),
        "has no artefact 'policies', which `pdvf collect` needs",
    )
    heard: list[Event] = []
    with pytest.raises(RunError, match=complaint):
        EXECUTORS["serial"]([collect], heard.append)
    hasty = replace(collect, needs=())
    assert EXECUTORS["processes"]([hasty], heard.append) == [hasty]
    assert [*Follower(store.folder, whole=True).new()] == heard
    assert [event.kind for event in heard] == ["fail", "fail"]
    assert all(complaint in event.error for event in heard)


def test_an_executor_is_a_function_with_a_name(store, monkeypatch):
    """One more comes in a file of its own: this one hands each task to a thread."""

    def threads(tasks, on_event, workers=1, quiet=False, tick=lambda: None):
        with locks(tasks), ThreadPoolExecutor(workers) as pool:
            for task in tasks:
                pool.submit(task.run, on_event).result()
        return [task for task in tasks if not task.done]

    monkeypatch.setitem(EXECUTORS, "threads", threads)
    events: list[Event] = []
    toy = Task(store, "toy", (), ("agent-toy",), lambda: AtOnce("toy", lambda: jnp.zeros(1)))
    assert EXECUTORS["threads"]([toy], events.append, 2) == []
    assert [event.kind for event in events] == ["start", "stage", "finish"]
    assert [*Follower(store.folder, whole=True).new()] == events


def test_no_workers_at_all(tmp_path, capsys):
    assert main(["reproduce", "spaceship", "--workers", "0", "--out", str(tmp_path / "out")]) == 2
    assert "--workers is 0, expected at least 1" in capsys.readouterr().err
