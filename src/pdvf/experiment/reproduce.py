"""The whole paper: every family and method in one folder, with a page that says what is done and what is left.

OUT/FAMILY/            a run each, with all methods compared
OUT/status.html        what is done, what is left, how long it took
OUT/stretches.json     when the command was at work
OUT/index.html         the tables and figures of all families together
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pdvf.experiment.files import read_json, require_fields, to_json, write_file
from pdvf.experiment.plan import Task
from pdvf.experiment.provenance import device, now
from pdvf.experiment.store import RunStore
from pdvf.families.registry import family_names
from pdvf.methods import METHODS
from pdvf.paper.pipeline import PHASES
from pdvf.reports.data import read_run
from pdvf.reports.page import TEMPLATES
from pdvf.reports.tables import Table, headline

FIGURES = (
    ("test_returns", "Returns in the test environments"),
    ("train_returns", "Returns in the training environments"),
    ("embeddings", "Embeddings of dynamics and policies"),
    ("transfer", "How policies transfer"),
)


class Status:
    """The status page of a reproduction that is at work: a stretch of time from when this is made."""

    def __init__(self, out: Path, tasks: Sequence[Task], workers: int = 1) -> None:
        self._out, self._tasks, self._workers = out, tasks, workers
        self._began, self._clock = now(), time.monotonic()
        self._earlier = stretches(out)
        self._written = 0.0

    def write(self) -> str:
        """Writes status.html and stretches.json; the state in one line."""
        self.write_clock(0.0)
        return write_status(self._out, self._tasks)

    def write_clock(self, every: float = 10.0) -> None:
        """Writes stretches.json, unless it was written less than so many seconds ago; a kill costs no more of it."""
        seconds = time.monotonic() - self._clock
        if seconds < self._written + every:
            return
        self._written = seconds
        this = {"began": self._began, "seconds": round(seconds, 1), "workers": self._workers, "device": device()}
        write_file(self._out / "stretches.json", to_json({"stretches": [*self._earlier, this]}))


def stretches(out: Path) -> list[dict[str, Any]]:
    """When the command was at work, as stretches.json says."""
    path, advice = out / "stretches.json", "delete it; only the times of earlier stretches are lost"
    if not path.is_file():
        return []
    data = read_json(path, advice)
    require_fields(data, {"stretches": (list,)}, path, advice)
    for stretch in data["stretches"]:
        require_fields(stretch if isinstance(stretch, dict) else {}, {"seconds": (int, float)}, path, advice)
    return data["stretches"]


def write_status(out: Path, tasks: Sequence[Task]) -> str:
    """Writes status.html; the state in one line. Tasks that leave no artefact do not count."""
    counted = [task for task in tasks if task.leaves]
    seconds = {(task.store.folder.name, task.name): _seconds(task) for task in counted}
    families = list(dict.fromkeys(family for family, _ in seconds))
    rows = []
    for name in dict.fromkeys(name for _, name in seconds):
        label = METHODS[name].text if name in METHODS else f"phase {name}" if name in PHASES else ""
        rows.append([f"{name}\n{label}".rstrip(), *(_shown(seconds, family, name) for family in families)])
    spent = {f: sum(taken or 0.0 for (family, _), taken in seconds.items() if family == f) for f in families}
    rows.append(["together", *(f"{spent[family] / 60:.1f} min" for family in families)])
    done = sum(taken is not None for taken in seconds.values())
    line = f"{done} of {len(seconds)} tasks done, {sum(spent.values()) / 60:.1f} minutes spent on them"
    worked = stretches(out)
    by_the_clock = sum(stretch["seconds"] for stretch in worked) / 60
    times = "one stretch" if len(worked) == 1 else f"{len(worked)} stretches"
    clock = f" By the clock: {by_the_clock:.1f} minutes in {times}." if worked else ""
    table = Table(["Task", *families], rows, lead=len(rows) - 1)
    page = TEMPLATES.get_template("status.html").render(line=line, clock=clock, table=table)
    write_file(out / "status.html", page.encode())
    return line


def _seconds(task: Task) -> float | None:
    """Time that a task took, if it is done: every artefact that it leaves holds the time of all."""
    return float(task.store.info(task.leaves[0]).get("seconds") or 0.0) if task.done else None


def _shown(seconds: Mapping[tuple[str, str], float | None], family: str, name: str) -> str:
    taken = seconds.get((family, name), math.nan)  # some methods do not suit some families
    return "left" if taken is None else "" if math.isnan(taken) else f"{taken:.0f} s"


def write_index(out: Path) -> Path:
    """Writes index.html from the families that have a report, whichever command made them."""
    sections = []
    for family in (name for name in family_names() if (out / name / "report.html").is_file()):
        run = read_run(RunStore.open(out / family, family=family))
        files = {title: out / family / "figures" / f"{name}.png" for name, title in FIGURES}
        figures = {title: file.read_bytes() for title, file in files.items() if file.is_file()}
        sections.append({"family": family, "table": headline(run), "figures": figures})
    page = TEMPLATES.get_template("index.html").render(sections=sections)
    write_file(out / "index.html", page.encode())
    return out / "index.html"
