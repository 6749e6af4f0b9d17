"""Hostile environments: users' code that raises, exits, crashes, hangs or returns nonsense, wherever it is called.

    python tools/campaign/environments.py --seconds 60 --seed 0

Each try trains on such a family with the command line. It must end with one clear line and exit status 2, or, where
what it does is odd but allowed, with status 0 and the policies that a sound environment gives. After some of the first
kind the environment is mended, and the same command must go on to those policies.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

Deed = Callable[[Any], Any]
"""Takes what a sound environment would return and returns that, or something else, or does not return."""


class Unspeakable(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no words")


def throw(error: BaseException | type[BaseException]) -> Deed:
    def deed(_: Any) -> Any:
        raise error

    return deed


def recurse(result: Any) -> Any:
    return recurse(result)


def hang(_: Any) -> None:
    time.sleep(10_000)


def spin(_: Any) -> None:
    while True:
        pass


def hang_with_the_lock(_: Any) -> None:
    ctypes.PyDLL(None).sleep(10_000)  # C code that does not give up Python's lock


def stubborn(_: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(10_000)


def fork_and_return(result: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.fork()
    return result


def print_much(result: Any) -> Any:
    for _ in range(50):
        print("x" * 1000)
    os.write(1, b"bytes of its own\n" * 10)
    print("no newline", end="")
    return result


def start_threads(result: Any) -> Any:
    for daemon in (True, False):
        threading.Thread(target=time.sleep, args=(10_000,), daemon=daemon).start()
    return result


def start_a_program(result: Any) -> Any:
    subprocess.Popen(["sleep", "10000"])
    return result


def leave_the_folder(result: Any) -> Any:
    os.chdir("/")
    return result


def ignore_signals(result: Any) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return result


def change_surroundings(result: Any) -> Any:
    os.environ.clear()
    sys.path.clear()
    np.random.seed(3)
    sys.stdout.close()
    return result


def step_with(**changes: Any) -> Deed:
    """A step's result with other parts."""
    names = ("observation", "reward", "terminated", "truncated", "info")

    def deed(result: Any) -> Any:
        given = [(part, changes.get(name, part)) for name, part in zip(names, result, strict=True)]
        return tuple(change(part) if callable(change) else change for part, change in given)

    return deed


def reset_with(observation: Any) -> Deed:
    return lambda result: (observation(result[0]) if callable(observation) else observation, {})


class Hostile(NamedTuple):
    """One way to misbehave."""

    kind: str
    deed: Deed
    places: tuple[str, ...] = ("make_env", "reset", "step")
    words: str = ""
    """What the line says; nothing if all must go well."""


STEP, RESET = ("step",), ("reset",)
HOSTILE: dict[str, Hostile] = {
    "ValueError": Hostile("raises", throw(ValueError("no")), words="raised ValueError"),
    "two lines": Hostile("raises", throw(RuntimeError("one\ntwo\n\nthree")), words=": one two three"),
    "no words": Hostile("raises", throw(Unspeakable()), words="raised Unspeakable"),
    "long words": Hostile("raises", throw(OSError("x" * 100_000)), words="raised OSError"),
    "MemoryError": Hostile("raises", throw(MemoryError), words="raised MemoryError"),
    "StopIteration": Hostile("raises", throw(StopIteration), words="raised StopIteration"),
    "EOFError": Hostile("raises", throw(EOFError("mine")), words="raised EOFError"),
    "recursion": Hostile("raises", recurse, words="raised RecursionError"),
    "SystemExit": Hostile("exits", throw(SystemExit(3)), words="raised SystemExit"),
    "exit": Hostile("exits", lambda _: sys.exit("bye"), words="raised SystemExit"),
    "KeyboardInterrupt": Hostile("exits", throw(KeyboardInterrupt), words="raised KeyboardInterrupt"),
    "GeneratorExit": Hostile("exits", throw(GeneratorExit), words="raised GeneratorExit"),
    "os._exit": Hostile("exits", lambda _: os._exit(3), words="ended its process (exit code 3)"),
    "os._exit(0)": Hostile("exits", lambda _: os._exit(0), words="ended its process (exit code 0)"),
    "input": Hostile("exits", lambda _: input("your name?"), words="raised EOFError"),
    "segfault": Hostile("crashes", lambda _: ctypes.string_at(0), words="ended its process (segmentation fault)"),
    "abort": Hostile("crashes", lambda _: os.abort(), words="ended its process (aborted)"),
    "killed": Hostile("crashes", lambda _: os.kill(os.getpid(), signal.SIGKILL), words="ended its process (killed"),
    "terminated": Hostile("crashes", lambda _: os.kill(os.getpid(), signal.SIGTERM), words="ended its process (term"),
    "closes files": Hostile("crashes", lambda _: os.closerange(3, 64), words="an environment of hostile"),
    "sleeps": Hostile("hangs", hang, words="did not return within"),
    "spins": Hostile("hangs", spin, words="did not return within"),
    "hangs in C": Hostile("hangs", hang_with_the_lock, words="did not return within"),
    "ignores signals and sleeps": Hostile("hangs", stubborn, words="did not return within"),
    "string": Hostile("returns", lambda _: "done", words=" a str"),
    "None": Hostile("returns", lambda _: None, words="None"),
    "no tuple": Hostile(
        "returns", lambda result: result[0], ("reset", "step"), words="returned an array of shape (2,)"
    ),
    "one more": Hostile("returns", lambda result: (*result, 1), ("reset", "step"), words="returned a tuple of"),
    "four": Hostile("returns", lambda result: result[:4], STEP, words="returned a tuple of 4"),
    "observation that grows": Hostile(
        "returns", step_with(observation=lambda o: np.append(o, 1.0)), STEP, "gave an observation of 3 numbers"
    ),
    "observation NaN": Hostile("returns", step_with(observation=lambda o: o * np.nan), STEP, "not finite"),
    "observation too large": Hostile("returns", step_with(observation=[1e300, 0.0]), STEP, "not finite"),
    "observation string": Hostile("returns", step_with(observation="ab"), STEP, "gave an observation that is"),
    "observation of strings": Hostile(
        "returns", step_with(observation=["1", "2"]), STEP, "gave an observation that is"
    ),
    "observation dictionary": Hostile("returns", step_with(observation={"x": 1}), STEP, "gave an observation that is"),
    "observation complex": Hostile("returns", step_with(observation=[1j, 1.0]), STEP, "gave an observation that is"),
    "observation ragged": Hostile("returns", step_with(observation=[[1], [1, 2]]), STEP, "gave an observation that is"),
    "observation None": Hostile("returns", step_with(observation=None), STEP, "gave an observation that is None"),
    "first observation NaN": Hostile("returns", reset_with(lambda o: o * np.nan), RESET, "not finite"),
    "first observation string": Hostile("returns", reset_with("ab"), RESET, "gave an observation that is a str"),
    "first observation short": Hostile("returns", reset_with([1.0]), RESET, "gave an observation of 1 numbers"),
    "reward NaN": Hostile("returns", step_with(reward=float("nan")), STEP, "gave a reward of nan"),
    "reward infinite": Hostile("returns", step_with(reward=-np.inf), STEP, "gave a reward of -inf"),
    "reward too large": Hostile("returns", step_with(reward=1e300), STEP, "gave a reward of inf"),
    "reward complex": Hostile("returns", step_with(reward=1j), STEP, "gave a reward that is a complex"),
    "reward string": Hostile("returns", step_with(reward="1.0"), STEP, "gave a reward that is a str"),
    "reward None": Hostile("returns", step_with(reward=None), STEP, "gave a reward that is None"),
    "reward array": Hostile("returns", step_with(reward=np.zeros(2)), STEP, "gave a reward that is an array"),
    "terminated string": Hostile("returns", step_with(terminated="no"), STEP, "gave terminated that is a str"),
    "terminated None": Hostile("returns", step_with(terminated=None), STEP, "gave terminated that is None"),
    "terminated array": Hostile("returns", step_with(terminated=np.zeros(2, bool)), STEP, "gave terminated that is"),
    "forks": Hostile("odd", fork_and_return),
    "prints": Hostile("odd", print_much),
    "threads": Hostile("odd", start_threads),
    "programs": Hostile("odd", start_a_program),
    "folder": Hostile("odd", leave_the_folder),
    "ignores signals": Hostile("odd", ignore_signals),
    "surroundings": Hostile("odd", change_surroundings),
    "list": Hostile("odd", list, ("reset", "step")),
    "observation list": Hostile("odd", step_with(observation=list), STEP),
    "observation double": Hostile("odd", step_with(observation=lambda o: o.astype(np.float64)), STEP),
    "observation matrix": Hostile("odd", step_with(observation=lambda o: o[None]), STEP),
    "reward float32": Hostile("odd", step_with(reward=np.float32), STEP),
    "reward array of one": Hostile("odd", step_with(reward=lambda r: np.array([r])), STEP),
    "terminated 0 or 1": Hostile("odd", step_with(terminated=int), STEP),
    "terminated bool_": Hostile("odd", step_with(terminated=np.bool_), STEP),
    "info of anything": Hostile("odd", step_with(info=lambda _: {"lock": threading.Lock(), 1: print}), STEP),
}


class Push(gymnasium.Env):
    """A point that is pushed by the action and by a hidden force; `deed` is done at the n-th call of `place`."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, force: float, act: Callable[[str, Any], Any]):
        self.force, self.act = force, act

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2) * 0.1
        return self.act("reset", (self.state.astype(np.float32), {}))

    def step(self, action: np.ndarray) -> Any:
        self.state = self.state + 0.1 * np.array([self.state[1], action[0] + self.force])
        action[:] = 7.0  # it may do with it what it likes
        seen = self.state.astype(np.float32)
        return self.act("step", (seen, float(seen[0]), bool(abs(self.state[0]) > 3), False, {}))


class Make:
    """Makes environments whose `name`d deed is done at `place`, from its n-th time in a process on."""

    def __init__(self, name: str | None, place: str = "step", n: int = 1):
        self.name, self.place, self.n, self.count = name, place, n, 0

    def __call__(self, context: dict[str, float]) -> Any:
        return self._act("make_env", Push(context["force"], self._act))

    def _act(self, place: str, result: Any) -> Any:
        if self.name is None or place != self.place:
            return result
        self.count += 1
        return HOSTILE[self.name].deed(result) if self.count >= self.n else result


def family(name: str | None, place: str = "step", n: int = 1, timeout: float = 2.0, workers: int | None = None) -> Any:
    """A family of such environments; a sound one without a name."""
    from pdvf.families import GymFamily

    contexts = [{"force": -1.0}, {"force": 1.0}], [{"force": 0.5}]
    return GymFamily("hostile", Make(name, place, n), *contexts, horizon=8, step_timeout=timeout, workers=workers)


OPTIONS = {
    "preset": "smoke",
    "policy-seeds": "1",
    "ppo.steps": "32",
    "ppo.environments": "2",
    "ppo.rollout": "8",
    "ppo.epochs": "1",
    "ppo.minibatches": "2",
    "ppo.hidden": "8",
    "ppo.checkpoints": "2",
}
PROGRAM = """
import sys
from pdvf.cli.main import main
words = sys.argv[2:]
status = 0 if words[0] == "again" else main(["init", "mine.py:family", *words, "--out", sys.argv[1]])
sys.exit(status or main(["train", sys.argv[1], "--family", "mine.py:family", "--quiet"]))
"""
LIMIT = 180.0
"""Seconds after which a command counts as hung."""


class Ended(NamedTuple):
    """How a command went."""

    status: int | None
    error: str
    policies: str  # digest of what it has made

    @property
    def refused(self) -> bool:
        """Whether it is one clear line, after what the environment itself has printed."""
        lines = [line for line in self.error.splitlines() if "pdvf: " in line]
        return self.status == 2 and len(lines) == 1 and "Traceback" not in self.error


def train(folder: Path, name: str | None, place: str = "step", n: int = 1, again: bool = False) -> Ended:
    """Trains on a family in a folder, by the command line."""
    (folder / "mine.py").write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import environments
        family = environments.family({name!r}, {place!r}, {n})
        """)
    )
    mark = f"PDVF_CAMPAIGN={folder}"
    options = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-c", PROGRAM, "run", *(["again"] if again else options)]
    (package,) = importlib.util.find_spec("pdvf").submodule_search_locations  # type: ignore[union-attr,misc]
    settings = {
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PDVF_CAMPAIGN": str(folder),
        "PYTHONPATH": str(Path(package).resolve().parent),
    }
    # Files, since whatever an environment has started would keep a pipe open.
    with open(folder / "out", "w") as out, open(folder / "error", "w") as error:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | settings, stdout=out, stderr=error)
        try:
            status = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            status = None
            process.wait()
    words = (folder / "error").read_text(errors="replace")
    left = left_behind(mark)
    if left:
        words, status = f"{words}\nprocesses left behind: {left}", None
    digest = hashlib.sha256()
    for file in sorted((folder / "run").glob("artefacts/**/*.safetensors")):
        digest.update(file.read_bytes())
    return Ended(status, words, digest.hexdigest())


def left_behind(mark: str) -> list[int]:
    """Processes of a command that live on a moment after it has ended; they are killed."""
    for _ in range(10):
        found = [pid for pid in _processes() if _has(pid, mark)]
        if not found:
            return []
        time.sleep(0.2)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _has(pid: int, mark: str) -> bool:
    try:
        alive = ") Z " not in Path(f"/proc/{pid}/stat").read_text()
        return alive and mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def attempt(folder: Path, name: str, place: str, n: int, mend: bool, sound: str) -> tuple[str, str]:
    """One try: refused, acted or failed, and what was said if it failed."""
    folder.mkdir()
    ended = train(folder, name, place, n)
    words = HOSTILE[name].words
    if words and ended.refused and words in ended.error:
        if not mend:
            return "refused", ""
        ended = train(folder, None, again=(folder / "run" / "config.json").is_file())
        if ended.status == 0 and ended.policies == sound:
            return "refused", ""
        return "failed", f"mended, but: {ended.error[-1000:]}"
    if not words and ended.status == 0 and ended.policies == sound:
        return "acted", ""
    return "failed", f"status {ended.status}: {ended.error[-1000:]}"


def campaign(seconds: float, seed: int) -> dict[str, dict[str, Any]]:
    """Tries hostile environments for so long: counts by kind, with examples of what failed."""
    rng, until = random.Random(seed), time.monotonic() + seconds
    counts: dict[str, dict[str, Any]] = {}
    cases = [(name, place) for name, hostile in HOSTILE.items() for place in hostile.places]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        (root / "sound").mkdir()
        sound = train(root / "sound", None)
        if sound.status != 0:
            raise RuntimeError(f"a sound environment cannot be trained on: {sound.error}")

        def one(index: int) -> None:
            if time.monotonic() > until:
                return
            name, place, n, mend = draws[index]
            outcome, why = attempt(root / str(index), name, place, n, mend, sound.policies)
            kind = counts.setdefault(
                HOSTILE[name].kind, {"tried": 0, "refused": 0, "acted": 0, "failed": 0, "examples": []}
            )
            kind["tried"] += 1
            kind[outcome] += 1
            if outcome == "failed":
                kind["examples"].append(f"{name} in {place}, time {n}: {why}")

        draws = []
        while len(draws) < max(len(cases), int(seconds)):
            rng.shuffle(cases)
            # Resets of 64 seeds in 3 contexts come first; steps are spread over several processes.
            draws += [
                (name, place, rng.choice((1, 1, 2, 10) if place != "make_env" else (1, 2)), rng.random() < 0.25)
                for name, place in cases
            ]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(one, range(len(draws))))
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts = campaign(given.seconds, given.seed)
    columns = ("tried", "refused", "acted", "failed")
    print(f"{'environments that':<20}" + "".join(f"{column:>9}" for column in columns))
    for kind, found in sorted(counts.items()):
        print(f"{kind:<20}" + "".join(f"{found[column]:>9}" for column in columns))
    for kind, found in sorted(counts.items()):
        for example in found["examples"]:
            print(f"\n{kind}: {example}")
    return int(any(found["failed"] for found in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
