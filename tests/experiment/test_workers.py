"""Parts of runs in processes of their own."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.cli.main import main
from pdvf.config import PlusOptions, to_dict
from pdvf.experiment import workers
from pdvf.experiment.comparison import play_method, train_method
from pdvf.experiment.errors import RunError
from pdvf.experiment.parts import make_phase
from pdvf.experiment.progress import Quiet
from pdvf.experiment.store import RunStore
from pdvf.methods import METHODS, AtOnce, Method
from pdvf.paper.pipeline import PHASES, Problem
from tiny import TINY

CHOSEN = [METHODS[name] for name in ("pd-vf", "ppo-all", "oracle", "rma", "nn")]


class Process:
    """Stands for a process: it leaves its artefacts when somebody looks for the second time."""

    stdin = None

    def __init__(self, job: workers.Job, returncode: int) -> None:
        self.job, self.returncode, self.looks, self.ended = job, returncode, 0, False

    def poll(self) -> int | None:
        self.looks += 1
        if self.looks < 2:
            return None
        if not self.ended and not self.returncode:
            for name in self.job.leaves:
                self.job.store.save(name, {"x": np.zeros(1)})
        self.ended = True
        return self.returncode

    def terminate(self) -> None:
        self.returncode = -15

    def wait(self) -> None:
        self.ended = True


@pytest.fixture
def store(tmp_path):
    return RunStore.create(tmp_path / "spaceship", to_dict(TINY), "pdvf")


@pytest.fixture
def started(monkeypatch):
    """Jobs in the order of their start; those whose name is in `broken` fail."""
    jobs: list[workers.Job] = []
    broken: set[str] = set()
    processes: list[Process] = []

    def start(job, locks):
        assert locks
        assert job.ready
        jobs.append(job)
        job.log.parent.mkdir(exist_ok=True)
        job.log.write_text("first line\nout of memory\n")
        processes.append(Process(job, int(job.name in broken)))
        return processes[-1]

    monkeypatch.setattr(workers, "_start", start)
    monkeypatch.setattr(workers, "PAUSE", 0.0)
    return jobs, broken, processes


def test_a_method_that_options_ask_for_is_made_first(store):
    config = replace(TINY, plus=PlusOptions(by="experience", generalist=True))
    jobs = {job.name: job for job in workers.jobs_of(store, Problem(config), [METHODS["pd-vf-plus"]])}
    assert list(jobs) == [*PHASES, "ppo-all", "pd-vf-plus", "report"]
    assert {"policies", "adapter", "agent-ppo-all", "returns-ppo-all"} <= set(jobs["pd-vf-plus"].needs)


def test_everything_is_done_as_soon_as_it_can_be(store, started):
    jobs = workers.jobs_of(store, Problem(TINY), CHOSEN)
    lines: list[str] = []
    assert workers.work(jobs, 3, lines.append) == []
    names = [job.name for job in started[0]]
    assert sorted(names) == sorted([*PHASES, *(method.name for method in CHOSEN), "report"])
    assert names[:4] == ["train", "collect", "ppo-all", "oracle"]  # methods wait for phase 1, whatever they need
    assert names.index("rma") > names.index("oracle")
    assert names.index("fit") < names.index("nn")
    assert names[-1] == "report"
    assert lines[0] == "spaceship train: begins"
    assert "spaceship report: done in 0.0 s" in lines


@pytest.mark.parametrize(("given", "train", "method"), [({}, "0", "1"), ({workers.PRIORITY: "1"}, "1", "1")])
def test_phases_go_before_methods_on_a_shared_gpu(store, monkeypatch, given, train, method):
    seen: dict[str, str] = {}
    monkeypatch.delenv(workers.PRIORITY, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(workers.subprocess, "Popen", lambda command, env, **rest: seen.update({command[-1]: env}))
    for job in workers.jobs_of(store, Problem(TINY), CHOSEN):
        workers._start(job, ())
    assert seen["train"][workers.PRIORITY] == train
    assert seen["nn"][workers.PRIORITY] == method
    assert seen["nn"]["PATH"] == workers.os.environ["PATH"]


def test_no_more_than_so_many_at_a_time(store, started):
    most = 0

    def say(line: str) -> None:
        nonlocal most
        most = max(most, sum(not process.ended for process in started[2]))

    workers.work(workers.jobs_of(store, Problem(TINY), CHOSEN), 2, say)
    assert most == 2


def test_what_is_done_is_left_alone(store, started):
    for name in (*PHASES["train"].leaves, "agent-ppo-all", "returns-ppo-all"):
        store.save(name, {"x": np.zeros(1)})
    workers.work(workers.jobs_of(store, Problem(TINY), CHOSEN), 1, lambda line: None)
    assert not {"train", "ppo-all"} & {job.name for job in started[0]}


def test_a_part_that_fails_holds_up_only_what_needs_it(store, started):
    started[1].add("oracle")
    lines: list[str] = []
    undone = workers.work(workers.jobs_of(store, Problem(TINY), CHOSEN), 2, lines.append)
    assert [job.name for job in undone] == ["oracle", "rma", "report"]
    assert store.has("returns-nn")
    (failure,) = (line for line in lines if "failed" in line)
    assert "oracle: failed after" in failure
    assert "out of memory" in failure


def test_stages_of_finished_parts_are_removed(store, started):
    jobs = workers.jobs_of(store, Problem(TINY), [METHODS["ppo-all"]])
    for job in jobs:
        for name in job.leaves:
            store.save(name, {"x": np.zeros(1)})
    for part in ("train", "ppo-all"):
        store.save_stage(part, 1, {"x": np.zeros(1)})
    workers.work(jobs, 1, lambda line: None)
    assert not list(store.folder.rglob("*-stage-*"))


def test_stages_of_a_finished_phase_are_removed_at_the_next_start(store):
    """A kill after the last artefact and before the stages are removed leaves one."""
    toy = Method("toy", "", lambda problem, inputs, key: AtOnce("toy", lambda: jnp.zeros(1)))
    for name in (*PHASES["train"].leaves, "agent-toy", "returns-toy"):
        store.save(name, {"x": np.zeros(1)})
    for part in ("train", "toy", "returns-toy"):
        store.save_stage(part, 1, {"x": np.zeros(1)})
    make_phase(store, Problem(TINY), "train", Quiet())
    assert store.latest_stage("train") is None
    train_method(store, Problem(TINY), toy, {}, Quiet())
    assert store.latest_stage("toy") is None
    play_method(store, Problem(TINY), toy, None, {}, Quiet())
    assert store.latest_stage("returns-toy") is None


def test_a_log_is_not_written_through_a_link(store, tmp_path, monkeypatch):
    monkeypatch.setattr(workers.subprocess, "Popen", lambda *words, **more: None)
    (train,) = (job for job in workers.jobs_of(store, Problem(TINY), []) if job.name == "train")
    (tmp_path / "outside").write_text("precious")
    train.log.parent.mkdir()
    train.log.symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match="a symbolic link, which is not followed"):
        workers._start(train, ())
    assert (tmp_path / "outside").read_text() == "precious"


def test_an_interruption_ends_the_processes(store, started):
    def say(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workers.work(workers.jobs_of(store, Problem(TINY), CHOSEN), 3, say)
    assert [process.returncode for process in started[2]] == [-15]
    with store.lock():
        pass  # nobody holds it any more


def test_a_real_process(store):
    (train,) = (job for job in workers.jobs_of(store, Problem(TINY), []) if job.name == "train")
    lines: list[str] = []
    assert workers.work([train], 2, lines.append) == []
    assert [line.split(" in ")[0] for line in lines] == ["spaceship train: begins", "spaceship train: done"]
    store.verify("policies")
    assert "train: done in" in train.log.read_text()


def test_a_process_says_what_is_wrong(store):
    (collect,) = (job for job in workers.jobs_of(store, Problem(TINY), []) if job.name == "collect")
    lines: list[str] = []
    hasty = workers.Job(store, "collect", (), collect.leaves)
    assert workers.work([hasty], 1, lines.append) == [hasty]
    assert "has no artefact 'policies', which `pdvf collect` needs" in lines[-1]


def test_no_workers_at_all(tmp_path, capsys):
    assert main(["reproduce", "spaceship", "--workers", "0", "--out", str(tmp_path / "out")]) == 2
    assert "--workers is 0, expected at least 1" in capsys.readouterr().err
