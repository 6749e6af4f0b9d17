"""The host engine: the same numbers whatever the number of worker processes, and one clear line for whatever users'
environments do; a slice of tools/campaign/environments.py."""

from __future__ import annotations

import gc
import hashlib
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.cli.main import main
from pdvf.core.validation import ConfigError
from pdvf.engines import make_engine
from pdvf.families import GymFamily
from pdvf.families import loading as targets
from pdvf.families.env_pool import EnvPool, Move, UserEnvError, fault_of
from pdvf.families.env_process import FUNCTION, FUNCTIONS, SHARED_BYTES, Problem, Slots, Start
from push import Elsewhere, Push
from tiny import relaxed

CAMPAIGN = Path(__file__).parents[2] / "tools" / "campaign"
sys.path.append(str(CAMPAIGN))
import environments  # noqa: E402

PARTS = ("observation", "reward", "terminated", "info")
CONTEXT = np.array([-1.0], np.float32).tobytes()


def play(pool: EnvPool, horizon: int = 8) -> np.ndarray:
    """The last observations [2, o] of two episodes of four steps, without JAX."""
    assert pool.spaces(CONTEXT)[1][1] is not None
    pool.starts([CONTEXT], 4, 2)
    action, past = np.array([0.5], np.float32), np.zeros((0, 1), np.float32)
    for t in range(4):
        moves = [Move((CONTEXT, bytes([t, i])), i, past, action) for i in range(2)]
        made = pool.step(moves, [bytes([t + 1, i]) for i in range(2)], horizon, 2)
        past = np.concatenate([past, action[None]])
    return made.observation


def gone(pid: int, within: float = 3.0) -> bool:
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


# Numbers


@pytest.mark.parametrize("workers", [1, 2])
def test_the_numbers_of_version_0_1_come_out_of_any_number_of_processes(workers):
    forces = [{"force": force} for force in (-1.0, 0.5, 1.0)]
    family = GymFamily("push", Push, forces, [{"force": 0.0}], horizon=12, probe_steps=2, workers=workers)
    engine = make_engine(family)
    contexts = jnp.tile(jnp.asarray(family.train(0).contexts), (4, 1))
    states, _ = engine.reset(jax.random.split(jax.random.key(3), 12), contexts)
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 12, 1)).astype(np.float32)
    made, passed = [], []
    for t in range(12):
        states, outcome = engine.step(contexts, states, jnp.asarray(actions[t]))
        made.append(outcome)
        passed.append(states)
    made.append(engine.step(contexts, passed[5], jnp.asarray(actions[6]))[1])  # played again from the start
    digest = hashlib.sha256()
    for array in (*(part for outcome in made for part in outcome), states.mark):
        digest.update(np.asarray(array).tobytes())
    assert digest.hexdigest()[:16] == "c9b891dbc15f2d1d"
    assert len(family.pool._workers) == workers


def test_contexts_reach_the_environment_as_the_user_wrote_them():
    exact = {"force": 0.12345678901234567, "mass": 1e-9}
    family = GymFamily("push", Push, [exact, {"force": 2.0, "mass": 1.0}], [{"force": 0.0, "mass": 1.0}], horizon=9)
    assert family.named(family.train(0).contexts[0]) == exact
    assert family.named(np.array([0.1, 1e-7], np.float32)) == {"force": 0.1, "mass": 1e-7}  # one that nobody listed


def test_a_family_of_another_class_plays_too():
    engine = make_engine(Elsewhere())
    states, first = engine.reset(jax.random.split(jax.random.key(0), 2), jnp.array([[-1.0], [0.1]]))
    _, outcome = engine.step(jnp.array([[-1.0], [0.1]]), states, jnp.zeros((2, 2)))
    np.testing.assert_allclose(outcome.observation[:, 1] - first[:, 1], [-0.1, 0.01], rtol=1e-4)


# What environments return and raise: no processes are needed to see it


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (name, place)
        for name, hostile in environments.HOSTILE.items()
        for place in hostile.places
        if hostile.kind in ("raises", "returns") or "raised S" in hostile.words or "raised K" in hostile.words
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_what_an_environment_does_wrong_is_told(name, place):
    shared = memoryview(bytearray(SHARED_BYTES)).cast("Q")
    slots = Slots(environments.Make(name, place), shared)
    start = Start({"force": 0.5}, 0, np.zeros((0, 1), np.float32))
    with pytest.raises(Problem) as caught:
        slots.call("step", 2, [1], np.zeros((1, 1), np.float32), {0: start})
    before, after = caught.value.args
    assert environments.HOSTILE[name].words in before + after
    assert FUNCTIONS[shared[FUNCTION]] == place
    assert len(after) < 600
    assert "\n" not in before + after


@pytest.mark.parametrize(
    ("name", "place"),
    [("list", "reset"), ("list", "step")]
    + [
        (name, "step")
        for name in environments.HOSTILE
        if name.startswith(PARTS) and not environments.HOSTILE[name].words
    ],
)
def test_what_an_environment_may_return(name, place):
    start = Start({"force": 0.5}, 0, np.zeros((2, 1), np.float32))
    made, sound = (
        Slots(environments.Make(deed, place), memoryview(bytearray(SHARED_BYTES)).cast("Q")).call(
            "step", 2, [1], np.ones((1, 1), np.float32), {0: start}
        )
        for deed in (name, None)
    )
    for one, other in zip(made[:3], sound[:3], strict=True):
        np.testing.assert_array_equal(one, other)


# What takes a process along


@pytest.mark.parametrize(
    ("name", "place", "words"),
    [
        ("segfault", "step", "ended its process (segmentation fault) in step in context {'force': -1.0}"),
        ("os._exit", "reset", "ended its process (exit code 3) in reset in context {'force': -1.0}"),
        ("killed", "make_env", "ended its process (killed, as when memory runs out) in make_env in context"),
        ("hangs in C", "step", "did not return within 0.3 s (the family's step_timeout) in step in context"),
        (
            "SystemExit",
            "make_env",
            "raised SystemExit in make_env in context {'force': -1.0}: 3 (environments.py, line",
        ),
        ("closes files", "step", "ended its process"),
    ],
)
def test_an_environment_takes_nothing_but_its_process_along(name, place, words, capfd):
    family = environments.family(name, place, 2 if place == "step" else 1, timeout=0.3)
    with pytest.raises(UserEnvError) as caught:
        play(family.pool)
    assert str(caught.value).startswith(f"an environment of hostile {words}")
    assert str(caught.value).endswith(": mend it and run the same command again")
    assert not family.pool._workers
    assert not capfd.readouterr().err


def test_an_odd_environment_plays_and_its_words_go_to_stderr(capfd):
    families = [environments.family(name, "step") for name in (None, "prints", "forks", "surroundings", "threads")]
    sound, *odd = (play(family.pool) for family in families)
    for observation in odd:
        np.testing.assert_array_equal(observation, sound)
    printed = capfd.readouterr()
    assert "bytes of its own" in printed.err
    assert not printed.out
    workers = [family.pool._workers[0].process.pid for family in families]
    del families, odd
    gc.collect()
    assert all(gone(pid) for pid in workers)


def test_make_env_may_be_a_lambda_but_not_hold_what_cannot_be_sent():
    contexts = [{"force": -1.0}, {"force": 1.0}], [{"force": 0.5}]
    play(GymFamily("local", lambda context: Push(context), *contexts, horizon=8).pool)
    lock = threading.Lock()
    with pytest.raises(UserEnvError, match="make_env cannot be pickled"):
        play(GymFamily("local", lambda context: Push(context) if lock else None, *contexts, horizon=8).pool)


def test_a_file_that_changes_amid_a_run_is_refused(tmp_path):
    file = tmp_path / "changes.py"
    file.write_text("from environments import family\nfamily = family(None)\n")
    origin = targets.origin(targets.load(f"{file}:family"))
    assert origin is not None
    targets.find_again(origin)
    file.write_text(file.read_text() + "family = None\n")
    with pytest.raises(ConfigError, match="has changed since the command began"):
        targets.find_again(origin)


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    """Also one that is amid C code and does not give up Python's lock."""
    program = f"""
        import sys; sys.path.append({str(CAMPAIGN)!r})
        from pdvf.families.env_pool import EnvPool
        import environments
        pool = EnvPool("hostile", environments.Make("hangs in C", "reset"), lambda context: {{"force": 1.0}})
        pool.spaces(b"")
        print(pool._workers[0].process.pid, flush=True)
        pool.starts([b""], 1, 2)
        """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    time.sleep(0.2)  # for it to hang
    assert not gone(worker, 0.1)
    parent.kill()
    parent.communicate()
    assert gone(worker)


# On the command line


def test_a_fault_passes_through_jax_as_one_line(caplog, capfd):
    family = environments.family("string", "step")
    engine = make_engine(family)
    contexts = jnp.asarray(family.train(0).contexts)
    states, _ = engine.reset(jax.random.split(jax.random.key(0), 2), contexts)
    with pytest.raises(Exception) as caught:  # noqa: PT011  JAX's own
        jax.block_until_ready(jax.jit(engine.step)(contexts, states, jnp.zeros((2, 1))))
    expected = "expected (observation, reward, terminated, truncated, info): mend it and run the same command again"
    where = "in step in context {'force': -1.0}"
    assert str(fault_of(caught.value)) == f"an environment of hostile returned a str {where}, {expected}"
    assert fault_of(ValueError("something else")) is None
    assert "pure_callback" not in caplog.text + capfd.readouterr().err


def test_a_fault_is_not_told_again_when_the_process_ends():
    program = f"""
        import sys
        sys.path.append({str(CAMPAIGN)!r})
        import environments, jax, jax.numpy as jnp
        from pdvf.core.devices import shard_over_devices, use_all_cores
        from pdvf.engines import make_engine
        use_all_cores(2)
        family = environments.family("string", "step")
        engine, contexts = make_engine(family), jnp.asarray(family.train(0).contexts)
        def step(_, contexts):
            states, _ = engine.reset(jax.random.split(jax.random.key(0), contexts.shape[0]), contexts)
            return engine.step(contexts, states, jnp.zeros((contexts.shape[0], 1)))[1].reward
        try:
            jax.block_until_ready(shard_over_devices(step)((), contexts))
        except Exception:
            print("raised", len(jax.devices()))
        """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("raised 2\n", "")


def test_a_command_ends_with_one_line_and_goes_on_when_the_environment_is_mended(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = [word for name, value in environments.OPTIONS.items() for word in (f"--{name}", value)]

    def train(deed: str) -> int:
        Path("mended.py").write_text(f"import environments\nfamily = environments.family({deed})\n")
        targets.load_once.cache_clear()
        with relaxed():
            return main(["init", "mended.py:family", *words, "--out", "run"]) or main(
                ["train", "run", "--family", "mended.py:family", "--quiet"]
            )

    assert train("'segfault', 'step', 48") == 2  # in the second of two stages
    error = capfd.readouterr().err
    assert "ended its process (segmentation fault) in step in context" in error
    assert error.count("\n") == 1
    kept = {file.name for file in Path("run", "artefacts").rglob("*stage*")}
    assert kept
    assert train("None") == 0
