"""Kills commands and starts them again: nothing may be lost, everything goes on, and the end has the same bits.

A chain is one command in one folder. It is killed again and again (at a random time by a signal, or at one of its file
operations), then left alone until it ends. Its folder is compared with that of a command that nobody touched.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(HERE)]

import dying  # noqa: E402

from pdvf.core.processes import INTERRUPTED, LINE  # noqa: E402
from tiny import TINY, command_line  # noqa: E402

SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}
PATIENCE = 300.0
"""Seconds after which a command counts as hung."""
HUNG = -999
"""Exit status of a command that had to be killed after that."""
NTH = (1, 2, 3, 4, 5, 6, 8, 12)
"""Which of its file operations a command dies at, counted from its start."""
MOST = 25
"""Kills of one chain."""
WAYS = ("KILL", "TERM", "INT", *dying.OPERATIONS, dying.FULL)
AT_ONCE = 5.0
"""Seconds in which Ctrl-C must have ended a command."""
TINY_WORDS = command_line(TINY)
OWN = ("model", "ppo", "dynamics", "policy", "value", "evaluate", "baselines", "plus")
OWN_WORDS = [
    *TINY_WORDS[:2],
    *(
        word
        for i in range(2, len(TINY_WORDS), 2)
        if TINY_WORDS[i][2:].startswith(OWN)
        for word in TINY_WORDS[i : i + 2]
    ),
]


class Scenario(NamedTuple):
    """A command that is killed: its words without --out."""

    name: str
    words: tuple[str, ...]
    weight: int
    """How many chains of each ten are of this scenario."""


METHODS = ("rl2", "maml", "ppo-all", "no-agg-policy", "kmeans", "pd-vf-plus", "rma")
FAMILY = f"{HERE / 'pendulum.py'}:family"
SCENARIOS = (
    Scenario("run", ("run", "spaceship", *TINY_WORDS), 3),
    Scenario("run, Gymnasium", ("run", FAMILY, *OWN_WORDS), 2),
    Scenario("compare", ("compare", "spaceship", *TINY_WORDS, "--methods", *METHODS), 2),
    Scenario("sweep", ("sweep", "spaceship", *TINY_WORDS, "--option", "value.learning_rate", "1e-3", "3e-3"), 2),
    Scenario("reproduce", ("reproduce", "spaceship", "--preset", "smoke", "--workers", "2", "--methods", "nn"), 1),
)


@dataclass
class Attempt:
    """One start of a command."""

    returncode: int
    seconds: float
    said: str
    after: float = 0.0
    """Seconds from the signal to the end."""


@dataclass
class Chain:
    """What came of one chain."""

    scenario: str
    seed: int
    kills: dict[str, int] = field(default_factory=dict)  # by way of killing
    problems: list[str] = field(default_factory=list)
    bit_equal: bool = False


def environment(work: Path) -> dict[str, str]:
    """Compiled programs are kept: what is attacked is everything else."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(work / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    return os.environ | cache


def start(words: list[str], work: Path, log: Path, trap: tuple[str, int] | None = None) -> subprocess.Popen[bytes]:
    """The command, with what it says in a file."""
    program = ["-m", "pdvf"] if trap is None else [str(HERE / "dying.py"), trap[0], str(trap[1])]
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *program, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment(work),
            start_new_session=True,
        )


def attempt(
    words: list[str],
    work: Path,
    log: Path,
    trap: tuple[str, int] | None = None,
    number: signal.Signals | None = None,
    moment: float = 0.0,
) -> Attempt:
    """Starts a command, sends it a signal after so many seconds if one is given, and waits for its end."""
    began, after = time.monotonic(), 0.0
    process = start(words, work, log, trap)
    try:
        if number is not None:
            try:
                process.wait(moment)
            except subprocess.TimeoutExpired:
                sent = time.monotonic()
                process.send_signal(number)
                process.wait(PATIENCE)
                after = time.monotonic() - sent
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return Attempt(HUNG, time.monotonic() - began, log.read_text(errors="replace"), PATIENCE)
    return Attempt(process.returncode, time.monotonic() - began, log.read_text(errors="replace"), after)


def finished(folder: Path) -> dict[str, str]:
    """Checksums of all artefacts below a folder that are finished, as their manifests say."""
    found: dict[str, str] = {}
    for path in folder.rglob("artefacts/*.json"):
        if "-stage-" in path.name or not path.with_suffix(".safetensors").is_file():
            continue
        with open(path, "rb") as file:
            found[str(path.relative_to(folder))] = json.load(file)["sha256"]
    return found


def results(folder: Path) -> dict[str, Any]:
    """Everything that must not depend on kills: bytes of artefacts, their histories, tables; and no rests."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors" or path.name == "returns.csv":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.parent.name == "artefacts" and path.suffix == ".json":
            manifest = json.loads(path.read_bytes())
            found[name] = (manifest["sha256"], json.dumps(manifest["info"].get("history")))
        elif path.name.endswith(".tmp"):
            found[name] = "left behind"
    return found


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line names a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


class Reference(NamedTuple):
    """What a command makes that nobody touched, and how long it takes when everything is compiled."""

    results: dict[str, Any]
    seconds: float


def reference(scenario: Scenario, work: Path) -> Reference:
    """Made once and kept."""
    folder, note = work / "reference" / scenario.name, work / "reference" / f"{scenario.name}-results.json"
    note.parent.mkdir(parents=True, exist_ok=True)
    if not note.is_file():
        seconds = 0.0
        for _ in range(2):  # the first compiles
            shutil.rmtree(folder, ignore_errors=True)
            made = attempt([*scenario.words, "--out", str(folder)], work, note.with_suffix(".log"))
            if made.returncode:
                raise SystemExit(f"{scenario.name} does not even work undisturbed:\n{made.said}")
            seconds = made.seconds
        note.write_text(json.dumps({"results": results(folder), "seconds": seconds}))
    kept = json.loads(note.read_text())
    return Reference(kept["results"], kept["seconds"])


def run_chain(scenario: Scenario, seed: int, ways: Sequence[str], work: Path, until: float) -> Chain:
    """Stops one command up to `MOST` times, until it is done or time is up; then lets it end."""
    rng, chain = random.Random(seed), Chain(scenario.name, seed)
    whole = reference(scenario, work)
    folder, log = work / "chains" / f"{seed:05d}", work / "chains" / f"{seed:05d}.log"
    folder.parent.mkdir(exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    words = [*scenario.words, "--out", str(folder)]

    def check(wrong: bool, what: str, made: Attempt) -> None:
        if wrong:
            chain.problems.append(f"{scenario.name}, chain {seed}: {what}: {made.said[-400:]!r}")

    for _ in range(MOST):
        if time.monotonic() > until:
            break
        before, way = finished(folder), rng.choice(ways)
        if way in SIGNALS:
            made = attempt(words, work, log, None, SIGNALS[way], rng.uniform(0.2, 0.6 * whole.seconds))
        else:
            made = attempt(words, work, log, (way, rng.choice(NTH)))
        expected = {"INT": INTERRUPTED, "TERM": -signal.SIGTERM, dying.FULL: 2}.get(way, -signal.SIGKILL)
        if made.returncode != 0:  # 0: it was done before that
            chain.kills[way] = chain.kills.get(way, 0) + 1
            check(made.returncode != expected, f"exit status {made.returncode} after {way}", made)
        check("Traceback" in made.said or "Fatal Python" in made.said, f"traceback after {way}", made)
        if made.returncode == INTERRUPTED:
            check(not made.said.endswith(LINE + "\n") or made.said.count(LINE) != 1, "not the one line after INT", made)
            check(made.after > AT_ONCE, f"{made.after:.1f} s from INT to the end", made)
        if made.returncode == expected and way == dying.FULL:
            check("no space left on the device" not in made.said, "no line about the full disk", made)
        after = finished(folder)
        check(any(after.get(name) != bits for name, bits in before.items()), f"an artefact was lost after {way}", made)
        if made.returncode == 0:
            break
    made = attempt(words, work, log)
    check(made.returncode != 0, f"exit status {made.returncode} when it was started again", made)
    check("Traceback" in made.said, "traceback when it was started again", made)
    time.sleep(0.2)
    check(bool(processes_of(folder)), "processes live on", made)
    now = json.loads(json.dumps(results(folder)))
    chain.bit_equal = now == whole.results
    different = sorted(name for name in {*now, *whole.results} if now.get(name) != whole.results.get(name))
    check(not chain.bit_equal, f"other bits in {', '.join(different[:5])}", made)
    if not chain.problems:
        shutil.rmtree(folder)
    return chain


def campaign(
    seconds: float, seed: int, work: Path, ways: Sequence[str] = WAYS, scenarios: Sequence[Scenario] = SCENARIOS
) -> dict[str, Any]:
    """Chains until time is up; those of earlier campaigns in the same folder count. Counts by scenario and way."""
    work.mkdir(parents=True, exist_ok=True)
    ledger, until = work / f"kills-{seed}.jsonl", time.monotonic() + seconds
    chains = [Chain(**json.loads(line)) for line in ledger.read_text().splitlines()] if ledger.is_file() else []
    order = [s for turn in range(max(s.weight for s in scenarios)) for s in scenarios if turn < s.weight]
    while time.monotonic() < until:
        number = len(chains)
        chain = run_chain(order[number % len(order)], 10_000 * seed + number, ways, work, until)
        chains.append(chain)
        with ledger.open("a") as file:
            file.write(json.dumps(vars(chain)) + "\n")
        state = "the same bits" if chain.bit_equal and not chain.problems else "; ".join(chain.problems)
        print(f"{chain.scenario}: {sum(chain.kills.values())} kills, {state}", flush=True)
    return summary(chains)


def summary(chains: list[Chain]) -> dict[str, Any]:
    """Counts for the table: a kill after which the chain had any problem counts as failed."""
    table: dict[str, Any] = {}
    for chain in chains:
        for way, count in chain.kills.items():
            row = table.setdefault(f"{chain.scenario}: {way}", {"tried": 0, "resumed": 0, "failed": 0, "examples": []})
            row["tried"] += count
            row["failed" if chain.problems or not chain.bit_equal else "resumed"] += count
            row["examples"] += chain.problems
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "campaign")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--only", nargs="+", choices=[s.name for s in SCENARIOS], default=[s.name for s in SCENARIOS])
    given = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if scenario.name in given.only]
    print(json.dumps(campaign(given.seconds, given.seed, given.work.resolve(), given.ways, chosen), indent=2))
