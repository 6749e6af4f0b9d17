"""Runs in an object store: a real server for S3 on loopback, and fsspec's store in memory where that is enough."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pdvf
from pdvf.cli.main import main
from pdvf.config import ConfigError, to_dict
from pdvf.experiment import remote as remotes
from pdvf.experiment.errors import RunError
from pdvf.experiment.remote import LEASE, Remote, local_at, remote_at
from pdvf.experiment.store import RunStore
from tiny import TINY

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PDVF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remotes, "PATIENCE", 5.0)
    return tmp_path / "cache"


@pytest.fixture
def s3(monkeypatch) -> Iterator[str]:
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket{port}"  # what a server of this process has stays for the next
    s3fs.S3FileSystem().mkdir(bucket)
    yield f"s3://{bucket}/run"
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(params=["memory", "s3"])
def place(request) -> Iterator[str]:
    if request.param == "s3":
        yield request.getfixturevalue("s3")
        return
    yield "memory://bucket/run"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def elsewhere(monkeypatch, tmp_path: Path, place: str) -> RunStore:
    """The same run on a machine that has no working copy yet."""
    monkeypatch.setenv("PDVF_CACHE", str(tmp_path / "elsewhere"))
    return RunStore.open(place)


def test_what_is_saved_is_there_on_another_machine(place, tmp_path, monkeypatch):
    store = RunStore.create(place, to_dict(TINY), "pdvf run")
    tree = {"x": np.arange(5.0, dtype=np.float32)}
    with store.lock():
        store.save("policies", tree, info={"seconds": 1.0})
        store.save_stage("train", 1, tree)
        store.save_stage("train", 2, tree)
        store.write_text("returns.csv", "a,b\n")
    other = elsewhere(monkeypatch, tmp_path, place)
    assert other.folder != store.folder
    assert other.config == store.config
    np.testing.assert_array_equal(other.load_arrays("policies")["x"], tree["x"])
    assert other.latest_stage("train") == (2, "train-stage-0002")
    with other.lock():
        other.remove("policies")
        other.clear_stages("train")
    assert not RunStore.open(place).names("")
    assert not elsewhere(monkeypatch, tmp_path / "third", place).names("")


def test_what_was_not_published_whole_is_not_there(place, tmp_path, monkeypatch):
    store = RunStore.create(place, to_dict(TINY), "pdvf run")
    with store.lock():
        store.save("policies", {"x": np.zeros(2)})
    assert store.remote is not None
    store.remote.remove("artefacts/policies.json")
    assert not elsewhere(monkeypatch, tmp_path, place).has("policies")
    monkeypatch.setenv("PDVF_CACHE", str(tmp_path / "cache"))
    assert not RunStore.open(place).has("policies")  # the working copy agrees with the store


def test_other_options_are_refused(place, tmp_path, monkeypatch):
    RunStore.create(place, to_dict(TINY), "pdvf run")
    monkeypatch.setenv("PDVF_CACHE", str(tmp_path / "elsewhere"))
    with pytest.raises(RunError, match="was made with other options"):
        RunStore.create(place, to_dict(TINY) | {"seed": 7}, "pdvf run")


def holder(remote: Remote, **changes: object) -> None:
    there = {"host": "elsewhere", "process": 1, "token": "other", "until": time.time() + 60} | changes
    fsspec.filesystem(remote.url.partition(":")[0]).pipe_file(f"{remote.url}/{LEASE}", json.dumps(there).encode())


def test_one_writer(place, monkeypatch):
    store = RunStore.create(place, to_dict(TINY), "pdvf run")
    assert store.remote is not None
    monkeypatch.setattr(remotes.time, "sleep", lambda seconds: holder(store.remote, until=time.time() + 61))
    holder(store.remote)
    with pytest.raises(RunError, match="process 1 on elsewhere is writing to"), store.lock():
        pass
    monkeypatch.undo()
    holder(store.remote, until=time.time() - 1)  # expired
    with store.lock():
        store.save("policies", {"x": np.zeros(2)})
    with store.lock():  # it was given back
        pass


def test_a_lease_that_was_lost_ends_the_writing(monkeypatch):
    monkeypatch.setattr(remotes, "LEASED", 0.4)
    store = RunStore.create("memory://bucket/lost", to_dict(TINY), "pdvf run")
    assert store.remote is not None
    with store.lock():
        holder(store.remote)
        time.sleep(0.5)
        with pytest.raises(RunError, match="the lease of memory://bucket/lost was lost"):
            store.save("policies", {"x": np.zeros(2)})
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_a_store_that_comes_back(monkeypatch):
    store = RunStore.create("memory://bucket/away", to_dict(TINY), "pdvf run")
    tries = []

    def away(scheme: str):
        tries.append(scheme)
        if len(tries) < 3:
            raise ConnectionError("no route to host")
        return fsspec.filesystem(scheme)

    with store.lock():
        monkeypatch.setattr(remotes, "_files", away)
        store.save("policies", {"x": np.zeros(2)})
    assert len(tries) > 3
    assert RunStore.open("memory://bucket/away").has("policies")
    monkeypatch.setattr(remotes, "_files", lambda scheme: away("") if tries.clear() is None else None)
    with pytest.raises(RunError, match=r"cannot reach memory://bucket/away \(ConnectionError: no route to host\)"):
        RunStore.open("memory://bucket/away")


def test_addresses(tmp_path):
    assert remote_at(Path("s3://bucket/run")).url == remote_at("s3://bucket/run").url == "s3://bucket/run"
    assert remote_at("runs/a") is remote_at(tmp_path) is remote_at(f"file://{tmp_path}") is None
    assert local_at(Path(f"file://{tmp_path}")) == tmp_path
    assert local_at("s3://bucket/all") / "spaceship" == local_at("s3://bucket/all/spaceship")
    with pytest.raises(ConfigError, match=r"unknown kind of address nothing://, expected s3://"):
        RunStore.open("nothing://bucket/run")
    with pytest.raises(RunError, match="memory://bucket/absent is not a run"):
        RunStore.open("memory://bucket/absent")


def test_a_run_of_the_command_line(s3, capsys, tmp_path, monkeypatch):
    words = ["init", "spaceship", "--preset", "smoke", "--out", s3]
    assert main(words) == 0
    assert RunStore.open(s3).config["family"] == "spaceship"
    assert main(["sweep", "spaceship", "--preset", "smoke", "--out", s3, "--option", "seed", "1"]) == 2
    assert "a sweep needs a folder of this machine" in capsys.readouterr().err
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr(s3fs.core.S3FileSystem, "retries", 1)
    assert main(["report", s3]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pdvf: cannot reach s3://bucket")
    assert said.count("\n") == 1


def put(store: RunStore, name: str, data: bytes) -> None:
    assert store.remote is not None
    fsspec.filesystem("memory").pipe_file(f"{store.remote.url}/{name}", data)


@pytest.fixture
def memory() -> Iterator[str]:
    yield "memory://bucket/run"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


@pytest.mark.parametrize("name", ["artefacts/../../../out", "artefacts-b/out", "artefacts/../out", "artefacts/.out"])
def test_no_name_in_a_store_leaves_the_folder(memory, tmp_path, name):
    store = RunStore.create(memory, to_dict(TINY), "pdvf run")
    for ending in (".json", ".safetensors"):
        put(store, name + ending, b"{}")
    assert not RunStore.open(memory).names("")
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"config.json", "environment.json", ".lock"}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"host": "a"}',
        '{"host": "a", "process": "1", "token": "b", "until": 1.0}',
        '{"host": "a", "process": 1, "token": "b", "until": "1"}',
    ],
)
def test_a_lease_that_is_none_is_told(memory, text):
    store = RunStore.create(memory, to_dict(TINY), "pdvf run")
    put(store, LEASE, text.encode())
    with pytest.raises(RunError, match=r"lease\.json is not a lease of ours"), store.lock():
        pass


def test_a_lease_from_a_machine_whose_clock_is_wrong(memory, monkeypatch):
    store = RunStore.create(memory, to_dict(TINY), "pdvf run")
    assert store.remote is not None
    monkeypatch.setattr(remotes, "LEASED", 0.2)
    monkeypatch.setattr(remotes.time, "sleep", lambda seconds: None)
    holder(store.remote, until=time.time() + 1e9)
    with store.lock():
        pass


@pytest.mark.parametrize("name", ["config.json", "environment.json"])
def test_a_kill_before_the_head_is_published_and_a_run_that_was_deleted(memory, monkeypatch, tmp_path, name):
    publish = Remote.publish_new

    def killed(self: Remote, folder: Path, what: str) -> None:
        if what == name:
            raise KeyboardInterrupt
        publish(self, folder, what)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "publish_new", killed)
        with pytest.raises(KeyboardInterrupt):
            RunStore.create(memory, to_dict(TINY), "pdvf run")
    for deleted in (False, True):
        if deleted:
            fsspec.filesystem("memory").rm("/bucket/run", recursive=True)
        store = RunStore.create(memory, to_dict(TINY), "pdvf run")
        with store.lock():
            store.save("policies", {"x": np.zeros(2)})
        there = {path.rpartition("/")[2] for path in fsspec.filesystem("memory").find("/bucket/run")}
        assert there == {*remotes.HEAD, "policies.json", "policies.safetensors"}


def test_from_python_a_run_keeps_its_number_of_devices(memory, monkeypatch, tmp_path):
    store = RunStore.create(memory, to_dict(TINY), "pdvf run")
    begun = json.loads((store.folder / "environment.json").read_text())
    begun["device"]["count"] = 7
    put(store, "environment.json", json.dumps(begun).encode())
    asked = []
    monkeypatch.setattr("pdvf.core.devices.use_all_cores", asked.append)
    monkeypatch.setenv("PDVF_CACHE", str(tmp_path / "elsewhere"))
    pdvf.open_run(memory)
    assert asked == [7]
