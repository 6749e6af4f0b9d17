"""Writes a run's report: figures as PNG, and one page that holds everything and needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from pdvf.core.validation import ConfigError
from pdvf.experiment.store import RunStore
from pdvf.families.base import DrawnFamily
from pdvf.reports import bars, figures, films, page, tables
from pdvf.reports.data import Run, read_run
from pdvf.reports.style import png


class Entry(NamedTuple):
    """A figure of the report: its file's name, heading, and how it is drawn."""

    name: str
    title: str
    draw: Callable[[Run], Figure | None]


ENTRIES = (
    Entry("test_returns", "Returns in the test environments", partial(bars.by_environment, split="test")),
    Entry("train_returns", "Returns in the training environments", partial(bars.by_environment, split="train")),
    Entry("paths", "Paths in the test environments", figures.paths),
    Entry("strips", "Adapted agents in the test environments", films.strips),
    Entry("embeddings", "Embeddings of dynamics and policies", figures.embeddings),
    Entry("values", "Predicted against actual return", figures.values),
    Entry("transfer", "How policies transfer", figures.transfer),
    Entry("learning_curves", "Learning curves of the policies", figures.learning_curves),
    Entry("losses", "Losses and aggregation", figures.losses),
)


def write_report(store: RunStore, steps: Mapping[str, int] | None = None) -> Path:
    """Writes report.html, summary.csv and figures/*.png into the run's folder and returns the page's path.

    The caller holds the store's lock.
    Figures that the run lacks the data for are left out, and the page says so; the same run gives the same bytes.

    Args:
        store: the run.
        steps: environment steps that each method learned from, by its name; a dash stands for those that are missing.
    """
    run = read_run(store, steps)
    shown: list[page.Shown] = []
    absent: list[str] = []
    try:
        run = replace(run, filmed=films.film_episodes(store, run))
    except ConfigError as error:  # no OpenGL, a fault of an environment: a report without pictures is better than none
        absent.append(f"Films ({error})")
    for entry in ENTRIES:
        figure = entry.draw(run)
        file = f"figures/{entry.name}.png"
        if figure is None:
            (store.folder / file).unlink(missing_ok=True)  # of an earlier report
            if entry.name not in ("strips", "paths") or (entry.name == "paths" and isinstance(run.made, DrawnFamily)):
                absent.append(entry.title)
            continue
        data = png(figure)
        store.write_bytes(file, data)
        shown.append(page.Shown(entry.name, entry.title, data))
    moving = films.films(run.filmed)
    for film in moving:
        store.write_bytes(f"figures/film-{film.environment}.{film.kind}", film.data)
    store.write_text("summary.csv", tables.summary(run))
    store.write_text("report.html", page.render(run, shown, absent, moving))
    return store.folder / "report.html"
