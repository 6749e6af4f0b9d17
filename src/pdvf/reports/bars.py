"""Bars of returns: the paper's Figures 4 and 5 and its two figures of training environments."""

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
from pdvf.reports.style import ABLATIONS, BASELINES, INK, METHODS, MUTED, NORMAL, SMALL, look, make_figure, tidy

FEW = 4
"""Up to so many methods are one figure; more are two, as in the paper."""
ROW = 8
"""Most environments side by side."""


def is_comparison(run: Run) -> bool:
    """Whether there are enough methods for the paper's two figures."""
    return len(run.select("test", "honest")) > FEW


def test_returns(run: Run) -> Figure | None:
    """Honest returns of few methods in the test environments, the paper's bars as outlines."""
    return None if is_comparison(run) else _bars(run.select("test", "honest"), paper.test_returns(run.family))


def train_returns(run: Run) -> Figure | None:
    """The same in the training environments, for which the paper's bars have not been digitised."""
    return None if is_comparison(run) else _bars(run.select("train", "honest"), {})


def test_baselines(run: Run) -> Figure | None:
    """Figure 4: PD-VF, upper bound and baselines, and methods that the paper does not have."""
    return _bars(_baselines(run, "test"), paper.test_returns(run.family)) if is_comparison(run) else None


def test_ablations(run: Run) -> Figure | None:
    """Figure 5: PD-VF and its ablations."""
    return _bars(_ablations(run, "test"), paper.test_returns(run.family)) if is_comparison(run) else None


def train_baselines(run: Run) -> Figure | None:
    """Figure 4 for the training environments."""
    return _bars(_baselines(run, "train"), {}) if is_comparison(run) else None


def train_ablations(run: Run) -> Figure | None:
    """Figure 5 for the training environments."""
    return _bars(_ablations(run, "train"), {}) if is_comparison(run) else None


def _baselines(run: Run, split: str) -> list[Group]:
    theirs = [name for name in METHODS if name not in (*BASELINES, *ABLATIONS)]
    groups = run.select(split, "honest")
    others = [g for g in groups if g.method in theirs or g.method not in METHODS]
    return [g for g in groups if g.method in BASELINES] + others


def _ablations(run: Run, split: str) -> list[Group]:
    return [group for group in run.select(split, "honest") if group.method in ABLATIONS]


def _bars(groups: Sequence[Group], theirs: dict[str, dict[int, PaperReturn]]) -> Figure | None:
    """Bars of each method in each environment and of its mean, with 95 % intervals, in rows of environments."""
    if not groups:
        return None
    environments = sorted({number for group in groups for number in group.environments})
    slots = [*environments, None]  # None: the mean
    rows = [slots[i : i + ROW] for i in range(0, len(slots), ROW)]
    if len(rows[-1]) < len(rows[0]) / 2 and len(rows) > 1:  # no lone stragglers
        half = -(-len(slots) // len(rows))
        rows = [slots[i : i + half] for i in range(0, len(slots), half)]
    figure = make_figure(12.5 if len(environments) > 3 else 9.0, 4.4 if len(rows) == 1 else 3.3 * len(rows) + 0.6)
    panels = figure.subplots(len(rows), 1, squeeze=False, sharey=True)[:, 0]
    for axes, row in zip(panels, rows, strict=True):
        _row(axes, groups, row, theirs, max(map(len, rows)))
    panels[-1].set_xlabel("environment", fontsize=NORMAL, color=INK)
    handles: list[Patch | Line2D] = [Patch(color=look(g.method).colour, label=_label(g)) for g in groups]
    if any(np.isfinite(group.summary.mean.low) for group in groups):
        handles.append(Line2D([], [], color=INK, linewidth=1.4, label="95 % interval"))
    if any(group.method in theirs for group in groups):
        handles.append(Patch(facecolor="white", edgecolor=INK, linewidth=1.2, label="the paper ± std"))
    columns = -(-len(handles) // (-(-len(handles) // 9)))  # rows of equal length
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False, fontsize=NORMAL)
    return figure


def _label(group: Group) -> str:
    """A method's name as it is: matplotlib takes what is between two dollars for mathematics."""
    return look(group.method).label.replace("$", r"\$")


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
        colour = look(group.method).colour
        bars = theirs.get(group.method, {})
        for place, number in enumerate(row):
            x = place - 0.43 + (i + 0.5) * width
            estimate = group.summary.mean
            known = [bars[n] for n in group.environments if n in bars]
            bar = None
            if number is not None:
                if number not in group.environments:
                    continue
                estimate = group.summary.environments[group.environments.index(number)]
                bar = bars.get(number)
            elif known and len(known) == len(group.environments):
                bar = PaperReturn(float(np.mean([b.mean for b in known])), np.nan)
            axes.bar(x, estimate.value, 0.72 * width, color=colour, zorder=2)
            axes.vlines(x, estimate.low, estimate.high, color=INK, linewidth=1.4, zorder=5)
            if bar is not None:
                axes.bar(x, bar.mean, 0.88 * width, facecolor="none", edgecolor=INK, linewidth=0.8, zorder=4)
                side = x + 0.27 * width
                axes.vlines(side, bar.mean - bar.std, bar.mean + bar.std, color=MUTED, linewidth=1.0, zorder=4)
    tidy(axes, "", "", "return")
    axes.set_xticks(range(len(row)), ["mean" if number is None else str(number) for number in row])
    axes.tick_params(axis="x", length=0, labelsize=SMALL)
    if row[-1] is None:
        axes.get_xticklabels()[-1].set_fontweight("bold")
        axes.axvline(len(row) - 1.5, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set_xlim(-0.55, longest - 0.45)
