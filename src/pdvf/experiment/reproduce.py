"""The whole paper: every family and method in one folder, with a page that says what is done and what is left.

OUT/FAMILY/            a run each, with all methods compared
OUT/status.html        what is done, what is left, how long it took
OUT/index.html         the tables and figures of all families together
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pdvf.experiment.files import write_file
from pdvf.experiment.plan import Task
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
    table = Table(["Task", *families], rows, lead=len(rows) - 1)
    page = TEMPLATES.get_template("status.html").render(line=line, table=table)
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
