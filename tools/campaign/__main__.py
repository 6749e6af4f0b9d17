"""Attacks on pdvf with a time budget: `make campaign`, or `python tools/campaign --minutes 30`.

Two lanes at the same time, one a core. What a part found is kept in the work folder: the same command goes on with the
parts that are missing. At the end comes one table; with --write it also goes into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"
Found = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One kind of attack."""

    name: str
    share: float
    """Of the budget."""
    attack: Callable[[float, int, Path], Found]


def _of(module: str) -> Callable[[float, int, Path], Found]:
    return lambda seconds, seed, work: importlib.import_module(module).campaign(seconds, seed)


def _kills(lane: int) -> Callable[[float, int, Path], Found]:
    return lambda seconds, seed, work: importlib.import_module("kills").campaign(seconds, 10 * seed + lane, work)


def _interrupts(seconds: float, seed: int, work: Path) -> Found:
    kills = importlib.import_module("kills")
    runs = [scenario for scenario in kills.SCENARIOS if scenario.name.startswith("run")]
    return kills.campaign(seconds, 10 * seed + 9, work, ("INT",), runs)


LANES: tuple[tuple[Part, ...], ...] = (
    (Part("kills", 1.0, _kills(0)),),
    (
        Part("interrupts", 0.2, _interrupts),
        Part("models", 0.12, _of("models")),
        Part("folders", 0.12, _of("folders")),
        Part("environments", 0.12, _of("environments")),
        Part("kills, second lane", 0.44, _kills(1)),
    ),
)


def run_lane(lane: int, minutes: float, seed: int, work: Path) -> None:
    """The parts of a lane one after the other; those that are done are left alone."""
    for part in LANES[lane]:
        file = work / f"{part.name}.json"
        if file.is_file():
            continue
        began = time.monotonic()
        found = part.attack(60 * minutes * part.share, seed, work)
        record = {"part": part.name, "seconds": round(time.monotonic() - began, 1), "found": found}
        aside = file.with_suffix(".tmp")
        aside.write_text(json.dumps(record, indent=2))
        aside.replace(file)


def table(work: Path) -> tuple[str, int]:
    """What was found, as Markdown; and how much of it failed. Kills are added up over both lanes, by command."""
    lines = ["| attack | tried | refused | went well | failed |", "| --- | ---: | ---: | ---: | ---: |"]
    rows: dict[str, dict[str, int]] = {}
    for part in (part for lane in LANES for part in lane):
        file = work / f"{part.name}.json"
        if not file.is_file():
            lines.append(f"| {part.name}: not done | | | | |")
            continue
        for name, found in json.loads(file.read_text())["found"].items():
            killed = "resumed" in found
            title = (
                f"kills: {name.rpartition(':')[0]}" if killed and part.name != "interrupts" else f"{part.name}: {name}"
            )
            row = rows.setdefault(title, {"tried": 0, "refused": 0, "well": 0, "failed": 0})
            well = found["resumed" if killed else "acted"]
            for column, count in (("tried", found["tried"]), ("well", well), ("failed", found["failed"])):
                row[column] += count
            row["refused"] += found.get("refused", 0)
    for title, row in rows.items():
        lines.append(f"| {title} | {' | '.join(f'{count:,}'.replace(',', ' ') for count in row.values())} |")
    failures = sum(row["failed"] for row in rows.values())
    lines.append(f"| **together** | **{sum(row['tried'] for row in rows.values())}** | | | **{failures}** |")
    return "\n".join(lines), failures


def describe(minutes: float, seed: int) -> str:
    """The command and what it ran on."""
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return (
        f"`make campaign MINUTES={minutes:g} SEED={seed}`, {datetime.now(UTC):%Y-%m-%d}, commit "
        f"{commit.stdout.strip() or 'unknown'}, Python {platform.python_version()}, two cores."
    )


def write_page(text: str) -> None:
    """Puts the table into docs/reliability.md, between its two marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """Runs both lanes and shows the table; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "campaign", help="made if it is not there")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if given.lane is not None:
        run_lane(given.lane, given.minutes, given.seed, work)
        return 0
    sys.path.insert(0, str(ROOT / "tests"))
    kills = importlib.import_module("kills")
    for scenario in kills.SCENARIOS:  # before the clock: what undisturbed commands make, and the compiled programs
        print(f"undisturbed: {scenario.name}, {kills.reference(scenario, work).seconds:.0f} s", flush=True)
    common = ["--minutes", str(given.minutes), "--seed", str(given.seed), "--work", str(work)]
    lanes = [subprocess.Popen([sys.executable, str(HERE), *common, "--lane", str(i)]) for i in range(len(LANES))]
    broken = [lane.wait() for lane in lanes]
    text, failures = table(work)
    print(text)
    for file in sorted(work.glob("*.json")):
        for name, row in json.loads(file.read_text()).get("found", {}).items():
            for example in row.get("examples", [])[:3] if row["failed"] else []:
                print(f"{file.stem}: {name}: {example}")
    if given.write:
        write_page(f"{describe(given.minutes, given.seed)}\n\n{text}")
    return int(failures > 0 or any(broken))


if __name__ == "__main__":
    sys.exit(main())
