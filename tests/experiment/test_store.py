import contextlib
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Event
from pdvf.experiment.scalars import TensorBoard
from pdvf.experiment.store import RunStore

CONFIG = {"seed": 0, "ppo": {"steps": 3000000, "clip": 0.2}, "start": (2.5, 0.2)}


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "run", CONFIG, "pdvf train")


ODD_JSON = [
    '{"a": ' * 100_000 + "1" + "}" * 100_000,
    '{"a": ' + "[" * 40 + "]" * 40 + "}",
    '{"a": NaN}',
    '{"a": 1e999}',
    '{"a": 9223372036854775808}',
    '{"a": ' + "9" * 5000 + "}",
    '{"a": "\\ud800"}',
]


def tree(value: float = 1.0) -> dict[str, jax.Array]:
    return {"a": jnp.full((4, 3), value), "key": jax.random.key(7)}


def file_of(store: RunStore, name: str) -> Path:
    return store.folder / "artefacts" / f"{name}.safetensors"


def load_a(store: RunStore, name: str) -> np.ndarray:
    return np.asarray(store.load(name, jax.eval_shape(tree))["a"])


def leftovers(store: RunStore) -> list[str]:
    return sorted(path.name for path in store.folder.rglob("*.tmp"))


# The folder and its configuration


def test_create_open_and_create_again(store):
    assert RunStore.open(store.folder).config == json.loads(json.dumps(CONFIG))
    environment = json.loads((store.folder / "environment.json").read_text())
    assert environment["command"] == "pdvf train"
    assert environment["versions"]["jax"] == jax.__version__
    assert environment["device"]["count"] == jax.device_count()
    RunStore.create(store.folder, CONFIG, "another command")
    assert json.loads((store.folder / "environment.json").read_text()) == environment


def test_changed_options_are_named(store):
    given = {"seed": 1, "ppo": {"steps": 1000, "clip": 0.3}, "start": [2.5, 0.3], "new": "x"}
    with pytest.raises(RunError) as caught:
        RunStore.create(store.folder, given, "")
    message = str(caught.value)
    assert "ppo.steps: 3000000 in the run, 1000 given" in message
    assert "and 2 more" in message
    assert "--out" in message
    assert "\n" not in message
    with pytest.raises(RunError, match="seed: 0 in the run, absent given"):
        RunStore.create(store.folder, {k: v for k, v in CONFIG.items() if k != "seed"}, "")


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(RunError, match="is not there"):
        RunStore.open(tmp_path / "missing")
    with pytest.raises(RunError, match="is not a run folder"):
        RunStore.open(tmp_path)
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(RunError, match=r"is not a run folder \(it has 'holiday.jpg'"):
        RunStore.create(tmp_path, CONFIG, "")
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]
    with pytest.raises(RunError, match="is a file"):
        RunStore.create(tmp_path / "holiday.jpg", CONFIG, "")


@pytest.mark.parametrize("text", ["", '{"seed": ', "[1]", "\xff", *ODD_JSON])
def test_broken_config(store, text):
    (store.folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=r"config\.json (is not JSON|holds)"):
        RunStore.open(store.folder)


def test_a_message_is_one_line_whatever_a_file_holds(store):
    (store.folder / "config.json").write_text(json.dumps(CONFIG | {"a\nb\x1b[31m": 1}))
    with pytest.raises(RunError) as caught:
        RunStore.create(store.folder, CONFIG, "")
    assert "a\\nb\\x1b[31m" in str(caught.value)


def test_files_that_never_end_are_not_read(store):
    (store.folder / "config.json").unlink()
    os.mkfifo(store.folder / "config.json")
    with pytest.raises(RunError, match="is not a run folder"):
        RunStore.open(store.folder)
    (store.folder / "config.json").unlink()
    (store.folder / "config.json").symlink_to("/dev/zero")
    with pytest.raises(RunError, match="is not a run folder"):
        RunStore.open(store.folder)


# Strangers' folders: only code that somebody names is run


def test_a_family_that_is_not_built_in_is_opened_by_name_only(tmp_path):
    RunStore.create(tmp_path / "run", CONFIG | {"family": "evil.py:family"}, "")
    with pytest.raises(RunError, match=r"names the family 'evil.py:family'.*code that would be run.*--family"):
        RunStore.open(tmp_path / "run")
    with pytest.raises(RunError, match=r"a run of the family 'evil.py:family', expected 'spaceship'"):
        RunStore.open(tmp_path / "run", family="spaceship")
    with pytest.raises(RunError, match=r'family: "evil\.py:family" in the run, "spaceship" given'):
        RunStore.create(tmp_path / "run", CONFIG | {"family": "spaceship"}, "")
    assert RunStore.open(tmp_path / "run", family="evil.py:family").config["family"] == "evil.py:family"


def test_a_kill_while_creating_leaves_a_folder_that_can_be_used(tmp_path):
    (tmp_path / "config.json.tmp").write_text('{"seed"')
    (tmp_path / ".lock").write_text("1")
    assert RunStore.create(tmp_path, CONFIG, "").config["seed"] == 0


# Artefacts


def test_round_trip_and_manifest(store):
    store.save("policies-2", tree(0.1), info={"score": np.float32(0.5), "worst": float("nan"), "n": jnp.arange(2)})
    back = store.load("policies-2", jax.eval_shape(tree))
    assert np.asarray(back["a"]).tobytes() == np.asarray(tree(0.1)["a"]).tobytes()
    assert jax.random.key_data(back["key"]).tolist() == jax.random.key_data(tree()["key"]).tolist()
    assert store.info("policies-2") == {"score": 0.5, "worst": None, "n": [0, 1]}
    manifest = store.manifest("policies-2")
    assert manifest["bytes"] == file_of(store, "policies-2").stat().st_size
    assert manifest["arrays"] == {"a": ["float32", [4, 3]], "key": ["uint32", [2]]}
    assert leftovers(store) == []


def test_truncated_file(store):
    store.save("x", tree())
    size = file_of(store, "x").stat().st_size
    os.truncate(file_of(store, "x"), size - 1)
    with pytest.raises(RunError, match=rf"truncated or altered \({size - 1} bytes, manifest says {size}\): delete it"):
        load_a(store, "x")
    file_of(store, "x").unlink()
    assert not store.has("x")
    store.save("x", tree(2.0))
    assert load_a(store, "x")[0, 0] == 2.0


def test_every_flipped_byte_is_noticed(store):
    store.save("x", {"a": jnp.ones(2)})
    good = file_of(store, "x").read_bytes()
    for i in range(len(good)):
        file_of(store, "x").write_bytes(good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :])
        with pytest.raises(RunError, match="truncated or altered"):
            store.load("x", {"a": jnp.ones(2)})


def test_missing_artefact_and_broken_manifest(store):
    with pytest.raises(RunError, match="artefact 'x' is not in"):
        load_a(store, "x")
    store.save("x", tree())
    manifest = file_of(store, "x").with_suffix(".json")
    manifest.write_text(manifest.read_text()[:50])
    with pytest.raises(RunError, match=r"x\.json is not JSON"):
        load_a(store, "x")
    manifest.write_text("{}")
    with pytest.raises(RunError, match="has no field 'bytes'"):
        load_a(store, "x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bytes", "12"),
        ("bytes", True),
        ("sha256", 7),
        ("sha256", None),
        ("inputs", []),
        ("inputs", {"data": 3}),
        ("inputs", {"../../x": "0"}),
        ("info", "x"),
        ("info", {"seconds": "long"}),
        ("info", {"history": 3}),
        ("versions", [1]),
        ("versions", {"jax": 3}),
        ("device", 1),
        ("device", {"platform": "cpu", "kind": "cpu"}),
        ("name", "../../x"),
        ("name", ["x"]),
        ("config", 5),
    ],
)
def test_odd_manifest(store, field, value):
    store.save("x", tree())
    manifest = file_of(store, "x").with_suffix(".json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {field: value}))
    for read in (store.verify, store.info, store.load_arrays):
        with pytest.raises(RunError, match=r"x\.(json|safetensors)"):
            read("x")


@pytest.mark.parametrize("text", ODD_JSON)
def test_odd_json_in_a_manifest(store, text):
    store.save("x", tree())
    file_of(store, "x").with_suffix(".json").write_text(text)
    with pytest.raises(RunError, match=r"x\.json (is not JSON|holds).*: delete it"):
        store.info("x")


@pytest.mark.parametrize("header", [b"", b"{", b"[]", b'{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'])
def test_an_altered_file_with_a_right_checksum(store, header):
    store.save("x", tree())
    data = len(header).to_bytes(8, "little") + header + b"\0"
    file_of(store, "x").write_bytes(data)
    manifest = file_of(store, "x").with_suffix(".json")
    signed = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | signed))
    with pytest.raises(RunError, match=r"x\.safetensors"):
        load_a(store, "x")


def test_an_artefact_is_bound_to_its_configuration(store):
    store.save("x", tree())
    path = store.folder / "config.json"
    path.write_text(json.dumps(CONFIG, sort_keys=True))  # the same, laid out otherwise
    load_a(RunStore.open(store.folder), "x")
    path.write_text(json.dumps(CONFIG | {"seed": 1}))
    altered = RunStore.open(store.folder)
    message = r"x\.safetensors was made by another configuration than .*config\.json holds.*altered.*put the run's own"
    for read in (altered.verify, altered.info, altered.load_arrays):
        with pytest.raises(RunError, match=message):
            read("x")
    with pytest.raises(RunError, match=message):
        altered.save("y", tree(), inputs=["x"])


def test_an_adopted_artefact_is_bound_to_its_new_run(store, tmp_path):
    store.save("x", tree(4.0))
    other = RunStore.create(tmp_path / "other", CONFIG | {"seed": 1}, "")
    other.adopt("x", store)
    assert load_a(other, "x")[0, 0] == 4.0


def test_artefact_of_another_shape_is_named(store):
    store.save("x", {"a": jnp.ones(2)})
    with pytest.raises(RunError, match=r"x\.safetensors.*array 'a' is float32\[2\], expected float32\[3\]"):
        store.load("x", {"a": jnp.ones(3)})


def test_leftovers_of_a_kill_count_as_absent(store):
    folder = store.folder / "artefacts"
    folder.mkdir()
    (folder / "x.safetensors").write_bytes(b"half an old file")
    (folder / "x.json.tmp").write_bytes(b"{")
    (folder / "y.safetensors.tmp").write_bytes(b"half")
    assert not store.has("x")
    with pytest.raises(RunError, match="is not in"):
        load_a(store, "x")
    with store.lock():
        assert leftovers(store) == []
        store.save("x", tree(3.0))
    assert load_a(store, "x")[0, 0] == 3.0


def test_kill_between_file_and_manifest_of_a_second_version(store, monkeypatch):
    """The old manifest must not vouch for the new file, nor the new file pass for whole."""
    store.save("x", tree(1.0))
    replace = os.replace

    def killed(source, target):
        if str(target).endswith(".json"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save("x", tree(2.0))
    assert not store.has("x")


def test_remove(store):
    store.save("x", tree())
    store.remove("x")
    store.remove("x")
    assert list((store.folder / "artefacts").iterdir()) == []


def test_stale_inputs(store):
    store.save("data", tree(1.0))
    store.save("model", tree(5.0), inputs=["data"])
    assert load_a(store, "model")[0, 0] == 5.0
    store.remove("data")
    assert load_a(store, "model")[0, 0] == 5.0
    store.save("data", tree(1.0))
    assert load_a(store, "model")[0, 0] == 5.0
    store.save("data", tree(1.5))
    with pytest.raises(RunError, match=r"model\.safetensors is stale.*another version of 'data': delete it"):
        load_a(store, "model")
    with pytest.raises(RunError, match="'nowhere' is not in"):
        store.save("model", tree(), inputs=["nowhere"])


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a.b", "-a"])
def test_names_that_could_leave_the_folder(store, name):
    with pytest.raises(RunError, match="cannot be used"):
        store.save(name, tree())


def test_files_that_are_no_artefacts_are_left_alone(store):
    store.save("agent-a", tree())
    for name in ("agent-x y", "agent-é", "agent-<b>"):
        for end in ("json", "safetensors"):
            (store.folder / "artefacts" / f"{name}.{end}").write_text("{}")
    (store.folder / "artefacts" / "ppo-stage-٣.json").write_text("{}")
    assert store.names("agent-") == ["agent-a"]
    assert store.latest_stage("ppo") is None
    store.clear_stages("ppo")


# Symbolic links


@pytest.fixture
def outside(tmp_path) -> Path:
    """A folder with a file that must stay as it is."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("precious")
    return tmp_path / "outside"


@pytest.mark.parametrize("name", ["artefacts", "figures", "logs", "tensorboard", "tensorboard/train"])
def test_nothing_is_written_through_a_folder_that_is_a_link(store, outside, name):
    path = store.folder / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside)
    (outside / "x.tmp").write_text("not ours")
    with pytest.raises(RunError, match=f"{name} is a symbolic link"), store.lock():
        pass
    assert sorted(p.name for p in outside.iterdir()) == ["file", "x.tmp"]


@pytest.mark.parametrize("target", ["file", "nothing"])
@pytest.mark.parametrize(
    "name",
    [f"{name}{end}" for name in ("artefacts/x.json", "artefacts/x.safetensors", "report.html") for end in ("", ".tmp")],
)
def test_nothing_is_written_through_a_file_that_is_a_link(store, outside, name, target):
    (store.folder / "artefacts").mkdir()
    (store.folder / name).symlink_to(outside / target)
    store.save("x", tree())
    store.write_text("report.html", "page")
    load_a(store, "x")
    assert not any(path.is_symlink() for path in store.folder.rglob("*"))
    assert [path.read_text() for path in outside.iterdir()] == ["precious"]


def test_a_lock_that_is_a_link(store, outside):
    (store.folder / ".lock").unlink()
    (store.folder / ".lock").symlink_to(outside / "file")
    with pytest.raises(RunError, match=r"cannot write .*\.lock, a symbolic link, which is not followed: remove it"):
        store.lock().__enter__()
    assert (outside / "file").read_text() == "precious"


def test_the_run_folder_itself_may_be_a_link(store, tmp_path):
    (tmp_path / "link").symlink_to(store.folder)
    linked = RunStore.open(tmp_path / "link")
    with linked.lock():
        linked.save("x", tree())
    load_a(store, "x")


def test_files_that_were_being_written_are_removed_wherever_a_run_writes(store):
    for name in ("report.html", "figures/a.png", "logs/x.log", "tensorboard/train/x", "artefacts/y.json"):
        (store.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (store.folder / f"{name}.tmp").write_text("half")
    with store.lock():
        assert leftovers(store) == []


# Stages


def test_stages(store):
    assert store.latest_stage("ppo") is None
    store.save_stage("ppo", 9, tree(9.0), {"history": [1]})
    store.save_stage("ppo", 10, tree(10.0), {"history": [1, 2]})
    store.save_stage("ppo-2", 30, tree())
    assert store.latest_stage("ppo") == (10, "ppo-stage-0010")
    assert store.info("ppo-stage-0010")["history"] == [1, 2]
    assert not store.has("ppo-stage-0009")
    (store.folder / "artefacts" / "ppo-stage-0011.safetensors").write_bytes(b"left by a kill")
    assert store.latest_stage("ppo") == (10, "ppo-stage-0010")
    store.clear_stages("ppo")
    names = {path.name for path in (store.folder / "artefacts").iterdir()}
    assert names == {"ppo-2-stage-0030.safetensors", "ppo-2-stage-0030.json"}


# Writing


def test_write_text_and_bytes(store):
    store.write_text("reports/page.html", "é")
    store.write_bytes("reports/page.html", b"new")
    assert (store.folder / "reports" / "page.html").read_bytes() == b"new"
    with pytest.raises(ValueError, match="not a path below"):
        store.write_text("../x", "")


def test_full_device(store, monkeypatch):
    """A real ENOSPC: the file aside is the device that is always full."""
    store.save("done", tree(1.0))
    with monkeypatch.context() as patch:
        patch.setattr("pdvf.experiment.files.open", lambda path, mode: Path("/dev/full").open("wb"), raising=False)  # noqa: SIM115
        with pytest.raises(RunError, match=r"no space left on the device while writing .*x\.safetensors: free space"):
            store.save("x", tree())
    assert leftovers(store) == []
    assert not store.has("x")
    assert load_a(store, "done")[0, 0] == 1.0
    store.save("x", tree())
    assert store.has("x")


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.EACCES, r"cannot write .*x\.txt \(Permission denied\)"),
        (errno.EROFS, r"cannot write .*x\.txt \(Read-only file system\)"),
    ],
)
def test_failures_keep_the_old_file(store, monkeypatch, number, message):
    store.write_text("x.txt", "old")

    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(RunError, match=message):
            store.write_text("x.txt", "new")
    assert (store.folder / "x.txt").read_text() == "old"
    assert leftovers(store) == []


def test_folder_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*Not a directory"):
        RunStore.create(tmp_path / "file" / "run", CONFIG, "")


# TensorBoard


def events(folder: Path) -> list:
    """Events of a folder in the order of writing, from records of length, crc, data, crc."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in folder.glob("*"):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return sorted(found, key=lambda event: event.wall_time)


def test_scalars_are_on_disk_at_once_and_purged_on_resume(store):
    folder = store.folder / "tensorboard" / "ppo"
    curves, event = TensorBoard(store.folder), Event(0.0, "run", "ppo", "start")
    curves(event)
    assert not folder.exists()
    curves(event._replace(kind="stage", stage=1, metrics={"loss": 0.5, "return": float("nan"), "other": None}))
    curves(event._replace(kind="stage", stage=2, metrics={"loss": 0.25}))
    points = [(e.step, v.tag, v.simple_value) for e in events(folder) for v in e.summary.value]
    assert points == [(1, "loss", 0.5), (2, "loss", 0.25)]
    curves(event._replace(stage=1))  # a kill came between
    curves(event._replace(kind="stage", stage=2, metrics={"loss": 0.125}))
    curves.close()
    assert len(list(folder.iterdir())) == 2
    last = events(folder)[-2:]
    assert last[0].step == 2
    assert last[0].session_log.status == last[0].session_log.START
    assert [(e.step, e.summary.value[0].simple_value) for e in last[1:]] == [(2, 0.125)]


def test_scalars_on_a_full_device(store, monkeypatch):
    from tensorboardX import record_writer

    open_file = record_writer.open_file
    monkeypatch.setattr(record_writer, "open_file", lambda path: open_file("/dev/full"))
    with pytest.raises(RunError, match="no space left"), contextlib.closing(TensorBoard(store.folder)) as curves:
        curves(Event(0.0, "run", "ppo", "stage", 1, 1, 0.0, {"loss": 0.5}))


# The lock


def test_lock_of_another_process_dies_with_it(store):
    command = [sys.executable, __file__, str(store.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with (
                pytest.raises(RunError, match=rf"process {holder.pid} is writing to .*: wait until"),
                store.lock(),
            ):
                pass
            assert RunStore.create(store.folder, CONFIG, "").config["seed"] == 0
        finally:
            holder.send_signal(signal.SIGKILL)
    with store.lock():
        pass
    with store.lock():
        assert (store.folder / ".lock").read_text() == str(os.getpid())


def hold_lock(folder: str) -> None:
    with RunStore.open(folder).lock():
        print("held", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    hold_lock(sys.argv[1])


def test_a_process_that_inherits_the_lock_keeps_it(tmp_path):
    store = RunStore.create(tmp_path / "run", {}, "pdvf")
    with store.lock() as descriptor:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[descriptor])
    try:
        with pytest.raises(RunError, match="is writing to"), store.lock():
            pass
    finally:
        child.kill()
        child.wait()
    with store.lock():
        pass
