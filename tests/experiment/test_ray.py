"""The executor ray, on a cluster that it starts here, and parts of phase 1 as its tasks."""

from __future__ import annotations

import errno
import io
import os
import socket
import sys
from dataclasses import replace

import pytest

from pdvf.cli.main import main
from pdvf.config import ConfigError, to_dict
from pdvf.experiment.events import Event
from pdvf.experiment.executors import EXECUTORS, ray, task
from pdvf.experiment.files import writing
from pdvf.experiment.node import supervise
from pdvf.experiment.plan import Task, plan
from pdvf.experiment.progress import ignore
from pdvf.experiment.provenance import recorded_cores
from pdvf.experiment.store import RunStore
from pdvf.methods import METHODS
from pdvf.paper.pipeline import Problem
from tiny import TINY

CUT = replace(TINY, shards=2)


def tasks_of(folder) -> tuple[RunStore, list[Task]]:
    store = RunStore.create(folder, to_dict(CUT), "pdvf")
    return store, plan(store, Problem(CUT), [METHODS["ppo-all"]], ("train",))


def test_parts_are_tasks_that_the_whole_needs(tmp_path):
    _, tasks = tasks_of(tmp_path)
    needs = {task.name: task.needs for task in tasks}
    assert list(needs) == ["train-part-1", "train-part-2", "train", "ppo-all", "returns-ppo-all"]  # one seed: no parts
    assert needs["train"] == ("train-part-1", "train-part-2")
    assert [task.priority for task in tasks] == [0, 0, 0, 2, 2]


def test_a_cluster_of_its_own_gives_the_bits_of_one_process(tmp_path):
    pytest.importorskip("ray")
    (here, ours), (there, theirs) = tasks_of(tmp_path / "here"), tasks_of(tmp_path / "there")
    assert recorded_cores(there.folder) is not None
    events: list[Event] = []
    assert EXECUTORS["ray"](theirs[:3], events.append, 2, True) == []
    EXECUTORS["processes"](ours[:3], ignore, 2, True)
    for name in ("train-part-1", "train-part-2", "policies"):
        assert there.manifest(name)["sha256"] == here.manifest(name)["sha256"]
    assert [event.task for event in events if event.kind == "finish"][-1] == "train"
    assert {event.task for event in events} == {"train", "train-part-1", "train-part-2"}


def test_the_command_says_what_is_wrong(tmp_path, capsys, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    run = ["run", "spaceship", "--preset", "smoke", "--out", str(tmp_path / "out"), "--executor"]
    for words, complaint in (
        (["ray", "--address", f"127.0.0.1:{port}"], f"no Ray cluster answers at --address 127.0.0.1:{port}"),
        (["ray", "--address", "nowhere"], "--address is 'nowhere', expected auto or HOST:PORT"),
        (["serial", "--address", "auto"], "--address is auto with --executor serial, expected --executor ray"),
        (["ray", "--workers", "0"], "--workers is 0, expected at least 1"),
    ):
        assert main([*run, *words]) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert said.startswith(f"pdvf: {complaint}"), said
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray, which is not installed: pip install 'pdvf\[ray\]'"):
        EXECUTORS["ray"]([], ignore)


def test_a_cluster_that_starts_here_asks_for_a_token(monkeypatch):
    library, modes = pytest.importorskip("ray"), []
    monkeypatch.setattr(library, "init", lambda *given, **named: modes.append(os.environ.get("RAY_AUTH_MODE")))
    monkeypatch.setattr(library, "shutdown", lambda: None)
    for imported, given, expected in ((False, None, "token"), (False, "disabled", "disabled"), (True, None, None)):
        with monkeypatch.context() as patch:
            patch.setattr(ray, "_imported", lambda imported=imported: imported)
            patch.setenv("RAY_AUTH_MODE", given or "")
            if given is None:
                patch.delenv("RAY_AUTH_MODE")
            with ray._cluster("", 1):
                assert modes[-1] == expected


def test_other_versions_are_named():
    error = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.1.0\n    Python: 3.9.1\n")
    assert "The cluster was started with: Ray: 2.1.0 Python: 3.9.1" in ray._why("10.0.0.1:6379", error)


def test_what_a_node_does(tmp_path, monkeypatch):
    """Without Ray: the function that its workers call."""
    family = "spaceship"
    words = ["-m", "pdvf.experiment.executors.task", str(tmp_path), family, "train", "--quiet"]
    status, said = supervise(words, str(tmp_path), {}, {"jax": "0.0.1"}, None)
    assert status == 2
    assert "expected 0.0.1 as where the command was given" in said
    status, said = supervise([*words[:2], str(tmp_path / "absent"), *words[3:]], str(tmp_path), {}, {}, None)
    assert status == 2
    assert "expected a folder that all nodes share" in said
    status, said = supervise(["-c", "print('no space left')", str(tmp_path), family, "train"], ".", {}, {}, None)
    assert status == 0
    assert said.startswith("no space left")
    with pytest.raises(RuntimeError, match="status 75"):
        supervise(["-c", "raise SystemExit(75)", str(tmp_path), family, "train"], ".", {}, {}, None)
    with pytest.raises(RuntimeError, match="status 120"):  # Python could not write its last words
        supervise(["-c", "raise SystemExit(120)", str(tmp_path), family, "train"], ".", {}, {}, None)
    with pytest.raises(RuntimeError, match="status -9"):
        supervise(["-c", "import os; os.kill(os.getpid(), 9)", str(tmp_path), family, "train"], ".", {}, {}, None)


def test_a_full_disk_is_the_nodes_own_trouble_also_where_its_log_is_full(tmp_path, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "full")

    def full(*given, **named):
        with writing(tmp_path / "config.json"):
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(RunStore, "open", full)
    for name in ("exit_on_interrupt", "exit_with_parent"):
        monkeypatch.setattr(task, name, lambda: None)
    monkeypatch.setattr(task, "use_recorded_cores", lambda folder: None)
    monkeypatch.setattr(sys, "stderr", Full())
    assert task.main(str(tmp_path), "spaceship", "train") == task.HERE
