"""Bars of returns: every method in each environment, the best first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pdvf.reports import paper
from pdvf.reports.data import Group, Run
from pdvf.reports.paper import PaperReturn
from pdvf.reports.statistics import Estimate
from pdvf.reports.style import INK, MUTED, NORMAL, SMALL, legend, look, make_figure, tidy

ROW = 8
"""Most environments side by side."""


def by_environment(run: Run, split: str) -> Figure | None:
    """Bars of each method in each environment and of its mean, with 95 % intervals, in rows of environments.

    The paper's bars, which have been digitised for the test environments alone, are outlines.
    """
    groups = run.best_first(split, "honest")
    if not groups:
        return None
    theirs = paper.test_returns(run.family) if split == "test" else {}
    environments = sorted({number for group in groups for number in group.environments})
    slots = [*environments, None]  # None: the mean
    rows = -(-len(slots) // ROW)
    size = -(-len(slots) // rows)  # rows of equal length
    figure = make_figure(11.0 if len(environments) > 3 else 9.0, 4.4 if rows == 1 else 3.3 * rows + 0.6)
    panels = figure.subplots(rows, 1, squeeze=False, sharey=True)[:, 0]
    for i, axes in enumerate(panels):
        _row(axes, groups, slots[i * size : (i + 1) * size], theirs, size)
    panels[-1].set_xlabel("environment", fontsize=NORMAL, color=INK)
    handles: list[Patch | Line2D] = [Patch(color=look(g.method).colour, label=_label(run, g)) for g in groups]
    handles.append(Line2D([], [], color=INK, linewidth=1.4, label="95 % interval"))
    if any(group.method in theirs for group in groups):
        handles.append(Patch(facecolor="white", edgecolor=INK, linewidth=1.2, label="the paper ± std"))
    legend(figure, handles, ncols=-(-len(handles) // (-(-len(handles) // 6))))
    return figure


def _label(run: Run, group: Group) -> str:
    """A method's name as it is: matplotlib takes what is between two dollars for mathematics."""
    return run.label(group.method).replace("$", r"\$")


def _row(
    axes: Axes,
    groups: Sequence[Group],
    row: Sequence[int | None],
    theirs: dict[str, dict[int, PaperReturn]],
    longest: int,
) -> None:
    """One row of environments; each method has a slot in each, with our bar filled and the paper's drawn over it."""
    width = 0.86 / len(groups)
    for i, group in enumerate(groups):
        known: dict[int | None, Estimate] = dict(zip(group.environments, group.summary.environments, strict=True))
        known[None] = group.summary.mean
        bars: dict[int | None, PaperReturn] = {n: b for n, b in theirs.get(group.method, {}).items() if n in known}
        if bars and len(bars) == len(group.environments):
            bars[None] = PaperReturn(float(np.mean([bar.mean for bar in bars.values()])), np.nan)
        for place, number in enumerate(row):
            x = place - 0.43 + (i + 0.5) * width
            if number in known:
                value, low, high = known[number]
                axes.bar(x, value, 0.72 * width, color=look(group.method).colour, zorder=2)
                axes.vlines(x, low, high, color=INK, linewidth=1.4, zorder=5)
            if number in bars:
                bar, side = bars[number], x + 0.27 * width
                axes.bar(x, bar.mean, 0.88 * width, facecolor="none", edgecolor=INK, linewidth=0.8, zorder=4)
                axes.vlines(side, bar.mean - bar.std, bar.mean + bar.std, color=MUTED, linewidth=1.0, zorder=4)
    tidy(axes, "", "", "return")
    axes.set_xticks(range(len(row)), ["mean" if number is None else str(number) for number in row])
    axes.tick_params(axis="x", length=0, labelsize=SMALL)
    if row[-1] is None:
        axes.get_xticklabels()[-1].set_fontweight("bold")
        axes.axvline(len(row) - 1.5, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set_xlim(-0.55, longest - 0.45)
