import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from pdvf.experiment.errors import RunError
from pdvf.experiment.events import EVENTS, Event, Follower, write_event
from pdvf.experiment.progress import Lines, Live, duration, ignore, make_progress
from pdvf.experiment.stages import run_phase
from pdvf.experiment.store import RunStore

STAGES = 3
ARTEFACTS = ["model", "summary"]
OPTIMISER = optax.adam(1e-2)


class ToyState(NamedTuple):
    model: eqx.nn.Linear
    optimiser: optax.OptState
    key: jax.Array
    done: jax.Array


class Toy:
    """Noisy regression: every bit of the state matters for the next stage."""

    name = "toy"
    stages = STAGES

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.stages_run: list[int] = []

    def start(self) -> ToyState:
        key, model_key = jax.random.split(jax.random.key(0))
        model = eqx.nn.Linear(3, 1, key=model_key)
        return ToyState(model, OPTIMISER.init(model), key, jnp.zeros((), jnp.int32))  # pyright: ignore

    def advance(self, state: ToyState, stage: int) -> tuple[ToyState, dict[str, jax.Array]]:
        time.sleep(self.pause)
        self.stages_run.append(stage)
        key, data_key = jax.random.split(state.key)
        x = jax.random.normal(data_key, (8, 3))
        loss, gradient = jax.value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x)[:, 0] - x[:, 0]) ** 2))(state.model)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises floats to whole powers
            change, optimiser = OPTIMISER.update(gradient, state.optimiser)
        model = optax.apply_updates(state.model, change)
        assert int(state.done) == stage
        return ToyState(model, optimiser, key, state.done + 1), {
            "loss": loss,
            "steps_per_second": jnp.asarray(8.0),
        }

    def finish(self, state: ToyState) -> dict[str, object]:
        return {
            "model": state.model,
            "summary": {"norm": jnp.linalg.norm(state.model.weight), "key": state.key},
        }


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __call__(self, event):
        assert (event.task, event.stages) == ("toy", STAGES)
        assert event.seconds > 0 or event.kind == "start"
        if event.kind == "stage":
            assert isinstance(event.metrics["loss"], float)
        self.calls.append((event.kind, event.stage))


def make_store(folder: Path) -> RunStore:
    store = RunStore.create(folder, {"seed": 0}, "test")
    if not store.has("data"):
        store.save("data", {"x": jnp.ones(2)})
    return store


def run(store: RunStore, toy: Toy, on_event=ignore) -> None:
    with store.lock():
        run_phase(store, toy, ARTEFACTS, ["data"], on_event)


def results(store: RunStore) -> list:
    """Bits of the artefacts and their metrics."""
    return [(store.manifest(name)["sha256"], store.info(name)["history"]) for name in ARTEFACTS]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> list:
    store = make_store(tmp_path_factory.mktemp("whole") / "run")
    run(store, Toy())
    return results(store)


def test_whole_phase(tmp_path):
    store, toy, progress = make_store(tmp_path / "run"), Toy(), Recorder()
    run(store, toy, progress)
    assert toy.stages_run == [0, 1, 2]
    assert progress.calls == [("start", 0), ("stage", 1), ("stage", 2), ("stage", 3), ("finish", 3)]
    info = store.info("model")
    assert len(info["history"]) == STAGES
    assert info["history"][0]["loss"] > 0
    assert info["seconds"] > 0
    assert list(store.manifest("summary")["inputs"]) == ["data"]
    assert store.latest_stage("toy") is None


def test_finished_phase_is_verified_not_repeated(tmp_path):
    store = make_store(tmp_path / "run")
    run(store, Toy())
    toy, progress = Toy(), Recorder()
    run(store, toy, progress)
    assert toy.stages_run == []
    assert progress.calls == []
    os.truncate(store.folder / "artefacts" / "summary.safetensors", 10)
    with pytest.raises(RunError, match=r"summary.*truncated or altered \(10 bytes"):
        run(store, toy)
    (store.folder / "artefacts" / "summary.safetensors").unlink()
    before = store.manifest("model")["sha256"]
    run(store, toy)
    assert store.manifest("model")["sha256"] == before
    store.save("data", {"x": jnp.zeros(2)})
    with pytest.raises(RunError, match=r"stale.*'data'"):
        run(store, toy)


def test_an_artefact_saved_before_a_kill_is_not_touched_again(tmp_path, monkeypatch, uninterrupted):
    store = make_store(tmp_path / "run")
    save = RunStore.save

    def save_and_die(self, name, *given, **named):
        if name == "summary":
            raise KeyboardInterrupt
        save(self, name, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "save", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            run(store, Toy())
    files = {path: path.stat().st_mtime_ns for path in (store.folder / "artefacts").glob("model.*")}
    assert len(files) == 2
    run(store, Toy())
    assert results(store) == uninterrupted
    assert all(path.stat().st_mtime_ns == when for path, when in files.items())


def test_stage_made_from_other_inputs_is_not_resumed(tmp_path):
    store, toy = make_store(tmp_path / "run"), Toy()
    store.save_stage("toy", 1, toy.start(), {"history": [], "seconds": 0.0}, ["data"])
    store.save("data", {"x": jnp.zeros(2)})
    with pytest.raises(RunError, match=r"toy-stage-0001\.safetensors is stale"):
        run(store, toy)


def test_error_in_a_stage_keeps_the_stages_before(tmp_path, uninterrupted):
    class Failing(Toy):
        def advance(self, state, stage):
            if stage == 2:
                raise FloatingPointError("diverged")
            return super().advance(state, stage)

    store = make_store(tmp_path / "run")
    with pytest.raises(FloatingPointError):
        run(store, Failing())
    assert store.latest_stage("toy") == (2, "toy-stage-0002")
    toy, progress = Toy(), Recorder()
    run(store, toy, progress)
    assert toy.stages_run == [2]
    assert progress.calls[0] == ("start", 2)
    assert results(store) == uninterrupted


def test_a_stage_is_saved_while_the_next_one_computes(tmp_path, monkeypatch):
    store, saving, going_on = make_store(tmp_path / "run"), threading.Event(), threading.Event()
    save = RunStore.save_stage

    def slow_save(self, phase, stage, *rest):
        if stage == 1:
            saving.set()
            assert going_on.wait(60)
        save(self, phase, stage, *rest)

    class Meanwhile(Toy):
        def advance(self, state, stage):
            if stage == 1:
                assert saving.wait(60)
                assert store.latest_stage("toy") is None
                going_on.set()
            return super().advance(state, stage)

    monkeypatch.setattr(RunStore, "save_stage", slow_save)
    progress = Recorder()
    run(store, Meanwhile(), progress)
    assert [stage for kind, stage in progress.calls if kind == "stage"] == [1, 2, 3]


def test_a_stage_that_cannot_be_saved_ends_the_phase(tmp_path, monkeypatch):
    def full(self, *rest):
        raise RunError("no space left")

    store, toy = make_store(tmp_path / "run"), Toy()
    monkeypatch.setattr(RunStore, "save_stage", full)
    with pytest.raises(RunError, match="no space left"):
        run(store, toy)
    assert toy.stages_run == [0, 1]  # the second was under way
    assert not store.has("model")


def test_artefacts_must_be_those_promised(tmp_path):
    store = make_store(tmp_path / "run")
    with pytest.raises(ValueError, match=r"made \['model', 'summary'\], expected \['model'\]"), store.lock():
        run_phase(store, Toy(), ["model"], [], ignore)


def test_kill_during_a_stage_then_resume_gives_the_same_bits(tmp_path, uninterrupted):
    store = make_store(tmp_path / "run")
    command = [sys.executable, __file__, str(store.folder), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("toy: stage 1 of 3"):
                child.send_signal(signal.SIGKILL)
                break
        assert child.wait() == -signal.SIGKILL
    assert store.latest_stage("toy") == (1, "toy-stage-0001")
    assert not store.has("model")
    toy = Toy()
    run(store, toy)
    assert toy.stages_run == [1, 2]
    assert results(store) == uninterrupted


# Moves into place: 1, 2 stage 1 and its manifest; 3, 4 stage 2; 5, 6 one artefact; 7, 8 the other.
@pytest.mark.parametrize(("kill_at", "left"), [(2, [0, 1, 2]), (3, [1, 2]), (6, [2]), (8, [2])])
def test_kill_while_writing_then_resume_gives_the_same_bits(tmp_path, uninterrupted, kill_at, left):
    store = make_store(tmp_path / "run")
    command = [sys.executable, __file__, str(store.folder), str(kill_at)]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == -signal.SIGKILL
    assert not all(store.has(name) for name in ARTEFACTS)
    toy = Toy()
    run(store, toy)
    assert toy.stages_run == left
    assert results(store) == uninterrupted
    names = {path.name for path in (store.folder / "artefacts").iterdir()}
    assert names == {f"{name}.{ending}" for name in ("data", *ARTEFACTS) for ending in ("safetensors", "json")}


def test_history_and_seconds_survive_a_resume(tmp_path):
    store, toy = make_store(tmp_path / "run"), Toy()
    state, _ = toy.advance(toy.start(), 0)
    store.save_stage("toy", 1, state, {"history": [{"loss": 123.0}], "seconds": 1000.0}, ["data"])
    run(store, toy)
    info = store.info("model")
    assert info["history"][0] == {"loss": 123.0}
    assert len(info["history"]) == STAGES
    assert 1000 < info["seconds"] < 1100


# Progress


def test_plain_lines():
    stream = io.StringIO()
    progress = Lines(stream)
    progress(Event(0.0, "run", "ppo", "start", 2, 8))
    progress(Event(0.0, "run", "ppo", "stage", 4, 8, 100.0))
    progress(Event(0.0, "run", "ppo", "stage", 5, 8, 100.0, {"steps_per_second": 1234567.0}))
    progress(Event(0.0, "run", "ppo", "finish", 8, 8, 3725.0))
    progress(Event(0.0, "run", "ppo", "fail", error="its own line says why"))
    progress(Event(0.0, "run", "report", "start"))  # nothing to wait for
    assert stream.getvalue().splitlines() == [
        "ppo: goes on after stage 2 of 8",
        "ppo: stage 4 of 8, 0.04 stages/s, 1 min 40 s left",
        "ppo: stage 5 of 8, 1,234,567 steps/s, 1 min 00 s left",
        "ppo: done in 1 h 02 min",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (9.96, "10 s"), (59.7, "1 min 00 s"), (3599.7, "1 h 00 min"), (7260, "2 h 01 min")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_live_bar_gives_the_cursor_back():
    from rich.console import Console

    stream = io.StringIO()
    progress = Live(Console(file=stream, force_terminal=True, width=100))
    progress(Event(0.0, "run", "ppo", "start", 1, 4))
    progress(Event(0.0, "run", "ppo", "stage", 2, 4, 10.0))
    progress(Event(0.0, "run", "next", "start", 0, 4))
    progress(Event(0.0, "run", "next", "finish", 4, 4, 20.0))
    progress(Event(0.0, "run", "report", "start"))
    progress(Event(0.0, "run", "report", "finish"))
    text = stream.getvalue()
    assert "2/4" in text
    assert "10 s left" in text
    assert "done in 20 s" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 2


def test_choice_of_progress(monkeypatch):
    assert make_progress(quiet=True) is ignore
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(make_progress(quiet=False), Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(make_progress(quiet=False), Live)


# The file of events


def test_events_are_read_as_they_were_written(tmp_path):
    events = [
        Event(1.5, "run", "fit", "start", 1, 4, 2.0),
        Event(2.5, "run", "fit", "stage", 2, 4, 3.0, {"loss": 0.25, "steps": 3}),
        Event(3.5, "run", "fit", "fail", error="späte Zeile\nund noch eine"),
    ]
    from_now = Follower(tmp_path)
    for event in events:
        write_event(tmp_path, event)
    assert [*from_now.new()] == events
    assert [*from_now.new()] == []
    assert [*Follower(tmp_path).new()] == []
    write_event(tmp_path, events[1]._replace(metrics={"loss": float("nan")}))
    (last,) = from_now.new()
    assert last.metrics == {"loss": None}  # strict JSON
    assert len((tmp_path / EVENTS).read_text().splitlines()) == 4


@pytest.mark.parametrize("cut", ["", "{", '{"time": 1', "[" * 5000, "3", '{"time": "soon"}', "\x00\xff"])
def test_a_line_that_a_kill_cut_costs_no_other(tmp_path, cut):
    first, second = (Event(float(i), "run", "fit", "stage", i, 4) for i in (1, 2))
    write_event(tmp_path, first)
    follower = Follower(tmp_path, whole=True)
    with open(tmp_path / EVENTS, "a", encoding="latin-1") as file:
        file.write(cut)
    assert [*follower.new()] == [first]
    write_event(tmp_path, second)
    assert [*follower.new()] == [second]


def test_events_are_not_written_through_a_link(tmp_path):
    (tmp_path / EVENTS).symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match="a symbolic link, which is not followed"):
        write_event(tmp_path, Event(0.0, "run", "fit", "start"))
    assert not (tmp_path / "outside").exists()


def child(folder: str, kill_at: int) -> None:
    """Runs the toy phase slowly, or kills itself before it moves its `kill_at`-th file into place."""
    replace, moves = os.replace, 0

    def counted(source, target):
        nonlocal moves
        moves += 1
        if moves == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = counted
    run(RunStore.open(folder), Toy(pause=0.0 if kill_at else 1.0), Lines(sys.stdout))


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]))
