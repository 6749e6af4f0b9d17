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


def ours(run: Run) -> list[str]:
    """Those of them that were run, the best first."""
    return [group.method for group in run.best_first("test", "honest") if group.method in OURS]


def paired(one: str, other: str) -> bool:
    """Whether the k-th seeds of two methods have the same model."""
    first, second = (METHODS[name].variant_of or name if name in METHODS else name for name in (one, other))
    return first == second


def gap(one: Group, other: Group) -> Estimate:
    """How far the mean return of one method is above another's; the same seeds of both are drawn if they are paired."""
    same = paired(one.method, other.method) and one.returns.shape == other.returns.shape
    return difference(one.returns, other.returns, same)


def lines(run: Run, split: str = "test") -> list[Line]:
    """Every method that played in a split."""
    own = [group for name, group in run.honest(split).items() if name in OURS]
    made = []
    for group in run.select(split):
        rivals = [mine for mine in own if mine.method != group.method and mine.environments == group.environments]
        apart = {mine.method: gap(mine, group) for mine in rivals}
        chance = {mine.method: probability_of_improvement(mine.returns, group.returns) for mine in rivals}
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
    groups = run.best_first("test", "honest")
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
        is_ours = group.method in OURS
        made.append(Bar(run.label(group.method), colour, begin, end - begin, low, high, value, words, is_ours))
    return made


def headline(run: Run) -> Table:
    """Every method in all test environments together, the best first."""
    found = _best_first(run)
    means = [line.group.summary.mean for line in found]
    minus = {name: [_cell(run, line.apart[name]) if name in line.apart else "" for line in found] for name in OURS}
    columns = {
        "Mean return": [run.number(mean.value) for mean in means],
        "95 % interval": [run.interval(mean) for mean in means],
        "Environment steps": [_steps(line.group, run.steps) for line in found],
        "Paper’s mean": ["" if line.paper is None else run.number(line.paper) for line in found],
        **{f"{run.label(name)} minus it": cells for name, cells in minus.items()},
    }
    lead = (i for i, (group, *_) in enumerate(found) if group.method in OURS and group.protocol == "honest")
    return _of_methods(run, found, columns, next(lead, None))


def more(run: Run) -> Table:
    """What else there is to say of each method."""
    found = _best_first(run)
    better = {name: [_percent(line.chance[name]) if name in line.chance else "" for line in found] for name in OURS}
    columns = {
        "Interquartile mean": [_cell(run, line.group.summary.iqm) for line in found],
        **{f"{run.label(name)} better": cells for name, cells in better.items()},
        "Seeds × episodes": ["{1} × {2}".format(*line.group.returns.shape) for line in found],
    }
    return _of_methods(run, found, columns)


def _best_first(run: Run) -> list[Line]:
    return sorted(lines(run), key=lambda line: -line.group.summary.mean.value)


def _of_methods(run: Run, found: list[Line], columns: Mapping[str, list[str]], lead: int | None = None) -> Table:
    """The names of methods and these columns, less those that say nothing."""
    names = [label(run, line.group) for line in found]
    colours = [look(line.group.method).colour for line in found]
    rows = list(zip(names, *columns.values(), strict=True))
    return Table(["Method", *columns], rows, colours, lead).without_empty_columns()


def environments(run: Run, split: str) -> Table | None:
    """Every method in each environment of a split, the best first, with the paper's returns in small print."""
    groups = run.best_first(split)
    if not groups:
        return None
    theirs = paper.test_returns(run.family) if split == "test" else {}
    numbers = run.played(split)
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
