"""Makes `summary.csv` of every folder below results/ from its `returns.csv`.

`python tools/summarise_results.py [--check]`.

With --check nothing is written; the exit status is 1 where a summary is not what its returns give.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from pdvf.experiment.store import RunStore
from pdvf.reports.data import Run, read_returns
from pdvf.reports.tables import summary

RESULTS = Path(__file__).resolve().parents[1] / "results"


def summarise(folder: Path) -> str:
    """The summary that belongs to the returns in a folder."""
    with open(folder / "returns.csv", encoding="utf-8", newline="") as file:
        family = next(csv.DictReader(file))["family"]
    config = {"family": family}
    return summary(Run(config, {}, read_returns(RunStore(folder, config)), {}, {}))


def main(words: list[str]) -> int:
    """Writes or checks every summary."""
    stale = []
    for path in sorted(RESULTS.rglob("summary.csv")):
        text = summarise(path.parent)
        if text != path.read_text(encoding="utf-8"):
            stale.append(path.relative_to(RESULTS))
            if "--check" not in words:
                path.write_text(text, encoding="utf-8")
    print(f"{len(stale)} summaries {'are stale' if '--check' in words else 'written'}: {', '.join(map(str, stale))}")
    return int(bool(stale) and "--check" in words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
