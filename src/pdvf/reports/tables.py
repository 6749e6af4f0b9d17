"""The tables of a report, and one class that writes any table for a terminal, as Markdown, CSV or HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pdvf.experiment.files import to_csv
from pdvf.methods import METHODS
from pdvf.reports import paper
from pdvf.reports.data import Group, Run
from pdvf.reports.statistics import Estimate, difference, probability_of_improvement
from pdvf.reports.style import look

OURS = tuple(name for name, method in METHODS.items() if method.adapting)
"""The methods that every other one is compared with."""
UNKNOWN = "–"
"""Where a number is not known."""


class Table(NamedTuple):
    """Cells as text; in HTML what follows a line break is small print."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    colours: Sequence[str] = ()
    """In HTML a square before each row, where there are colours."""
    lead: int | None = None
    """In HTML the row that stands out."""

    def without_empty_columns(self) -> Table:
        """The columns that say something; the first one stays."""
        kept = [i for i in range(len(self.head)) if i == 0 or any(row[i] not in ("", UNKNOWN) for row in self.rows)]
        return self._replace(head=[self.head[i] for i in kept], rows=[[row[i] for i in kept] for row in self.rows])

    def terminal(self) -> str:
        """Columns that are aligned by spaces."""
        lines = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join(line.rstrip() for line in padded)

    def markdown(self) -> str:
        """A table whose first column is text."""
        lines = (self.head, ["---", *["---:"] * (len(self.head) - 1)], *self.rows)
        return "".join(f"|{'|'.join(line)}|\n" for line in lines)

    def csv(self) -> str:
        """A line of names, then the rows."""
        return to_csv([self.head, *self.rows])


class Line(NamedTuple):
    """One method in all environments of a split together."""

    group: Group
    paper: float | None
    apart: dict[str, Estimate]  # how far each of OURS is above it
    chance: dict[str, Estimate]  # that a seed of each of OURS is better


def paired(one: str, other: str) -> bool:
    """Whether the k-th seeds of two methods have the same model."""
    first, second = (METHODS[name].variant_of or name if name in METHODS else name for name in (one, other))
    return first == second


def lines(run: Run, split: str = "test") -> list[Line]:
    """Every method that played in a split."""
    ours = {name: group for name, group in run.honest(split).items() if name in OURS}
    made = []
    for group in run.select(split):
        rivals = {
            name: mine.returns
            for name, mine in ours.items()
            if name != group.method and mine.environments == group.environments
        }
        apart = {
            name: difference(
                returns,
                group.returns,
                paired(name, group.method) and returns.shape == group.returns.shape,
            )
            for name, returns in rivals.items()
        }
        chance = {name: probability_of_improvement(returns, group.returns) for name, returns in rivals.items()}
        made.append(Line(group, run.paper_mean(group) if split == "test" else None, apart, chance))
    return made


def summary(run: Run) -> str:
    """A CSV file of means, interquartile means and differences; their intervals speak of seeds, so one has none."""
    estimates = ("mean", "iqm", *(f"{name}_minus_it" for name in OURS), *(f"{name}_better" for name in OURS))
    names = ("family", "split", "method", "protocol", "environments", "seeds", "episodes", "paper_mean")
    rows = []
    for line in (line for split in ("test", "train") for line in lines(run, split)):
        group, (environments, seeds, episodes) = line.group, line.group.returns.shape
        found: list[Estimate | None] = [group.summary.mean, group.summary.iqm]
        if seeds == 1:
            found = [Estimate(value, np.nan, np.nan) for value, _, _ in (group.summary.mean, group.summary.iqm)]
        found += [values.get(name) for values in (line.apart, line.chance) for name in OURS]
        numbers = [line.paper, *(number for estimate in found for number in (estimate or (None,) * 3))]
        words = (run.title, group.split, group.method, group.protocol, *map(str, (environments, seeds, episodes)))
        rows.append([*words, *("" if x is None or np.isnan(x) else f"{x:.6g}" for x in numbers)])
    return Table([*names, *(f"{name}{end}" for name in estimates for end in ("", "_low", "_high"))], rows).csv()


def terminal(groups: Sequence[Group], steps: Mapping[str, int] | None = None) -> str:
    """Mean return in the test environments, best first, for the terminal."""
    test = [group for group in groups if (group.split, group.protocol) == ("test", "honest")]
    rows = []
    for group in sorted(test, key=lambda group: -group.summary.mean.value):
        mean, low, high = group.summary.mean
        between = "" if low == high else f"[{low:.4g}, {high:.4g}]"
        rows.append([group.method, f"{mean:.4g}", between, str(group.returns.shape[1]), _steps(group, steps or {})])
    head = ["method", "test return", "95 % interval", "seeds", "environment steps"]
    return Table(head, rows).without_empty_columns().terminal()


class Bar(NamedTuple):
    """A method in the picture of all of them: places in percent of its width."""

    label: str
    colour: str
    begin: float
    width: float
    low: float
    high: float
    value: str
    words: str
    ours: bool


def bars(run: Run) -> list[Bar]:
    """Mean test return of every method, the best first, drawn from 0."""
    groups = sorted(run.select("test", "honest"), key=lambda group: -group.summary.mean.value)
    means = [group.summary.mean for group in groups]
    ends = [0.0, *(x for mean in means for x in (mean.value, *(() if np.isnan(mean.low) else (mean.low, mean.high))))]
    least, size = min(ends), (max(ends) - min(ends)) or 1.0

    def place(value: float) -> float:
        return round(100 * (value - least) / size, 2)

    made = []
    for group, mean in zip(groups, means, strict=True):
        begin, end = sorted((place(0.0), place(mean.value)))
        low, high = (place(mean.value if np.isnan(x) else x) for x in (mean.low, mean.high))
        words = f"{run.label(group.method)}: {run.number(mean.value)} {run.interval(mean)}".rstrip()
        steps = _steps(group, run.steps)
        words += f", {steps} environment steps" if steps != UNKNOWN else ""
        value, colour = run.number(mean.value), look(group.method).colour
        ours = group.method in OURS
        made.append(Bar(run.label(group.method), colour, begin, end - begin, low, high, value, words, ours))
    return made


def headline(run: Run) -> Table:
    """Every method in all test environments together, the best first."""
    found = sorted(lines(run), key=lambda line: -line.group.summary.mean.value)
    rows = [
        [
            label(run, line.group),
            run.number(line.group.summary.mean.value),
            run.interval(line.group.summary.mean),
            _steps(line.group, run.steps),
            "" if line.paper is None else run.number(line.paper),
            *(_cell(run, line.apart[name]) if name in line.apart else "" for name in OURS),
        ]
        for line in found
    ]
    minus = [f"{run.label(name)} minus it" for name in OURS]
    head = ["Method", "Mean return", "95 % interval", "Environment steps", "Paper’s mean", *minus]
    places = [i for i, (group, *_) in enumerate(found) if group.method in OURS and group.protocol == "honest"]
    colours = [look(line.group.method).colour for line in found]
    return Table(head, rows, colours, *places[:1]).without_empty_columns()


def more(run: Run) -> Table:
    """What else there is to say of each method."""
    found = sorted(lines(run), key=lambda line: -line.group.summary.mean.value)
    rows = [
        [
            label(run, line.group),
            _cell(run, line.group.summary.iqm),
            *(_percent(line.chance[name]) if name in line.chance else "" for name in OURS),
            "{1} × {2}".format(*line.group.returns.shape),
        ]
        for line in found
    ]
    better = [f"{run.label(name)} better" for name in OURS]
    colours = [look(line.group.method).colour for line in found]
    return Table(["Method", "Interquartile mean", *better, "Seeds × episodes"], rows, colours).without_empty_columns()


def environments(run: Run, split: str) -> Table | None:
    """Every method in each environment of a split, the best first, with the paper's returns in small print."""
    groups = sorted(run.select(split), key=lambda group: -group.summary.mean.value)
    if not groups:
        return None
    theirs = paper.test_returns(run.family) if split == "test" else {}
    numbers = sorted({number for group in groups for number in group.environments})
    rows = []
    for group in groups:
        row = [label(run, group)]
        for n in numbers:
            known = dict(zip(group.environments, group.summary.environments, strict=True))
            bar = theirs.get(group.method, {}).get(n) if group.protocol == "honest" else None
            beside = "" if bar is None else f"\npaper {run.number(bar.mean)} ± {run.number(bar.std)}"
            row.append(f"{_cell(run, known[n])}{beside}" if n in known else "")
        rows.append([*row, _cell(run, group.summary.mean)])
    head = ["Environment", *(f"{n}{_context(run, n)}" for n in numbers), "mean"]
    return Table(head, rows, [look(group.method).colour for group in groups])


def label(run: Run, group: Group) -> str:
    """A method's name, with the protocol where it is not the honest one."""
    return run.label(group.method) + ("" if group.protocol == "honest" else f" ({group.protocol})")


def _steps(group: Group, steps: Mapping[str, int]) -> str:
    return f"{steps[group.method]:,}".replace(",", " ") if group.method in steps else UNKNOWN


def _cell(run: Run, estimate: Estimate) -> str:
    """An estimate with its interval in small print, where there is one."""
    return f"{run.number(estimate.value)}\n{run.interval(estimate)}".rstrip()


def _percent(chance: Estimate) -> str:
    between = f"\n[{100 * chance.low:.0f}, {100 * chance.high:.0f}]" if chance.low < chance.high else ""
    return f"{100 * chance.value:.0f} %{between}"


def _context(run: Run, number: int) -> str:
    """The context of an environment, as small print."""
    at = np.flatnonzero(run.numbers == number) if run.has("contexts") else np.zeros(0)
    if not at.size:
        return ""
    context = run.contexts[at[0]]
    names = run.context_names if len(run.context_names) == len(context) > 1 else ("",) * len(context)
    shown = (f"{name} {float(value):.2f}".strip() for name, value in zip(names, context, strict=True))
    return "".join(f"\n{words}" for words in shown).replace("-", "−")
