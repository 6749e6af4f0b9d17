"""The HTML pages: what the templates in `templates/` need to know, and the verdict. Names are escaped by Jinja."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jinja2
import numpy as np
from matplotlib.colors import to_hex

from pdvf.config import flatten
from pdvf.experiment.progress import duration
from pdvf.methods import METHODS
from pdvf.reports import paper, tables
from pdvf.reports.data import Run, device_text
from pdvf.reports.figures import environment_colours
from pdvf.reports.films import SHOWN_SECONDS, Film
from pdvf.reports.statistics import RESAMPLES
from pdvf.reports.style import DPI, SMALL, look
from pdvf.reports.tables import OURS

PIXELS_PER_INCH = 90
"""Size of figures on the page, one for all, so that their letters are alike."""
SMALLEST_LETTERS = 9.0
"""Pixels: a figure scrolls in its box on a screen that is too narrow for letters of this size."""
PANEL = 420.0
"""Width and height of a panel of embeddings."""


class Shown(NamedTuple):
    """A figure on the page; `captions.html` says what to see, in the macro of its name."""

    name: str
    title: str
    png: bytes

    @property
    def width(self) -> int:
        """Width on the page in pixels; the header of the PNG says how wide it is."""
        return round(int.from_bytes(self.png[16:20]) * PIXELS_PER_INCH / DPI)

    @property
    def least(self) -> int:
        """Width below which its letters cannot be read."""
        return math.ceil(self.width * SMALLEST_LETTERS / (SMALL * PIXELS_PER_INCH / 72))


TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("pdvf.reports"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
TEMPLATES.globals["shown_seconds"] = SHOWN_SECONDS
TEMPLATES.filters["base64"] = lambda data: base64.b64encode(data).decode()


def render(run: Run, shown: Sequence[Shown], absent: Sequence[str], moving: Sequence[Film] = ()) -> str:
    """The whole report."""
    return TEMPLATES.get_template("report.html").render(
        run=run,
        title=_title(run),
        verdict=verdict(run),
        adapts=adapts(run),
        adaptation=[f"{each.sentence(_name(each.method))}." for each in run.adaptation],
        bars=tables.bars(run),
        panels=_panels(run) if any(each.name == "embeddings" for each in shown) else {},
        keys=_keys(run),
        panel=PANEL,
        headline=tables.headline(run),
        more=tables.more(run),
        environments={split: tables.environments(run, split) for split in ("test", "train")},
        one_seed=all(group.returns.shape[1] == 1 for group in run.select("test")),
        ours_are_marked=any(run.label(group.method).endswith("*") for group in run.select("test")),
        tries_both=any(group.protocol == "peek" for group in run.select("test")),
        resamples=RESAMPLES,
        shown=shown,
        numbers={each.name: _numbers(each.name, run) for each in shown},
        absent=absent,
        films=moving,
        differences=run.differences(),
        facts=_facts(run),
        times=_times(run),
        options=[(name, _plain(value)) for name, value in flatten(run.config)],
    )


def _title(run: Run) -> str:
    """The family, and the method that the verdict is on where it is ours."""
    method = next((f"{_name(name)} on " for name in tables.ours(run)), "")
    return f"{method}{run.title[:1].upper()}{run.title[1:]}"


def _panels(run: Run) -> dict[str, list[tuple[list[float], int, int, float | None]]]:
    """Embeddings by title: place, environment and policy of each point, and the return there if it is known."""
    found, made = run.embedded, {}
    returned = [None] * len(found.policy) if found.returned is None else found.returned.tolist()
    for name, title in (("z_d", "dynamics embeddings z_d"), ("z_pi", "policy embeddings z_π")):
        flat = found.planes[name] - found.planes[name].min(axis=0)
        places = np.round(12 + (PANEL - 24) * flat / (flat.max(axis=0) + 1e-9), 1).tolist()
        known = zip(places, found.environment.tolist(), found.policy.tolist(), returned, strict=True)
        made[title] = list(known)
    return made


def _keys(run: Run) -> list[tuple[int, str, bool]]:
    """Number and colour of each environment among the embeddings, and whether it is for testing."""
    colours = environment_colours(run).items()
    return [(n, to_hex(colour), test) for (n, colour), test in zip(colours, run.is_test.tolist(), strict=True)]


def verdict(run: Run) -> str:
    """One sentence: what our method returns in unseen environments, and how the best baseline compares."""
    groups = {group.method: group for group in run.best_first("test", "honest")}

    def text(name: str) -> str:
        mean = groups[name].summary.mean
        interval = run.interval(mean) or _why_no_interval(groups[name].returns)
        return f"{run.number(mean.value)} {interval}"

    ours = next(iter(tables.ours(run)), None)
    rivals = [name for name in groups if name not in OURS and not (name in METHODS and METHODS[name].privileged)]
    if ours is None:
        best = next(iter(groups))
        return f"{look(best).label} does best in unseen environments: {text(best)}; PD-VF was not run."
    begin = f"{_name(ours)} returns {text(ours)} in unseen environments"
    if not rivals:
        return f"{begin}; no baseline was run beside it."
    best = rivals[0]
    if groups[ours].environments != groups[best].environments:
        return f"{begin}; the best baseline that was run, {_name(best)}, played in others."
    gap, its = tables.gap(groups[ours], groups[best]), groups[best].returns.mean()
    if gap.low <= 0 <= gap.high:
        return f"{begin}, no clear difference from the best baseline that was run: {_name(best)} returns {text(best)}."
    if gap.value < 0:
        return f"{_name(best)} does better: it returns {text(best)} in unseen environments, {_name(ours)} {text(ours)}."
    percent = 100 * gap.value / its if its > 0 else np.inf
    more = f"{percent:.1f} %" if percent < 1000 else run.number(gap.value)
    return f"{begin}, {more} more than the best baseline that was run, {_name(best)}: {text(best)}."


def adapts(run: Run) -> str:
    """Whether the better of our methods adapts, where it was measured."""
    found = next((each for each in run.adaptation if each.method in tables.ours(run)[:1]), None)
    return "" if found is None else "Adapts: yes." if found.adapts else "Adapts: no, selection only."


def _name(method: str) -> str:
    return look(method).label.rstrip("*")


def _why_no_interval(returns: np.ndarray) -> str:
    alike = "all episodes alike" if returns[0].size > 1 else "one model and episode"
    return f"({alike}, so no interval)"


def _numbers(name: str, run: Run) -> dict[str, Any]:
    """What the caption of a figure says in numbers."""
    if name == "transfer":
        table, theirs = run.evaluation["transfer"].mean(axis=1), paper.transfer(run.family)
        own = np.eye(len(table), dtype=bool)
        zeros = theirs is not None and bool(np.any(np.all(theirs == 0, axis=1)))
        return {"own": table[own].mean(), "rest": table[~own].mean() if len(table) > 1 else None, "zeros": zeros}
    if name == "losses":
        series = run.history("adapter", "optimal_return")
        ends = () if series is None or len(series) < 2 else (series[0], series[-1])
        return {"ends": [float(np.nanmean(end)) for end in ends]}
    return {}


def _facts(run: Run) -> Iterator[tuple[str, Any]]:
    """How the run was made, as far as it is known."""
    made = run.environment
    facts = {
        "Command": made.get("command"),
        "Commit": made.get("commit"),
        **{name.replace("_", " ").capitalize(): run.option(name) for name in ("seed", "policy_seeds", "model_seeds")},
        "Device": device_text(made["device"]) if made.get("device") else None,
        "Platform": made.get("platform"),
        "Python": made.get("python"),
        "Versions": ", ".join(f"{name} {version}" for name, version in (made.get("versions") or {}).items() if version),
        "Begun": made.get("created"),
    }
    return ((name, value) for name, value in facts.items() if value not in (None, ""))


def _times(run: Run) -> list[tuple[str, str]]:
    seconds = run.seconds()
    together = {"together": sum(seconds.values())} if seconds else {}
    return [(phase, duration(value)) for phase, value in (seconds | together).items()]


def _plain(value: Any) -> str:
    return f"{value:,}".replace(",", " ") if isinstance(value, int) and not isinstance(value, bool) else str(value)
