"""The figures of a report. Each function draws one from a run, or returns None where the run lacks what it needs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from pdvf.families.base import DrawnFamily
from pdvf.reports import paper
from pdvf.reports.data import Run
from pdvf.reports.style import (
    GRID,
    INK,
    MUTED,
    NORMAL,
    SMALL,
    TEST,
    TRAIN,
    circle_colours,
    colour_bar,
    legend,
    make_figure,
    tidy,
)

CURVE_POINTS = 150
"""Points of a learning curve; updates are averaged in between."""
TRAIN_POINT: dict[str, Any] = {"marker": "o", "s": 15, "linewidths": 0}
TEST_POINT: dict[str, Any] = {"marker": "^", "s": 24, "linewidths": 0.35, "edgecolors": INK}
"""Environments in the plane of embeddings."""
TRAINING, HELD_OUT, PLAYED = ("training", MUTED), ("held out", TRAIN), ("played", TRAIN)
ERROR = "squared error"
LOSSES = (
    ("Dynamics autoencoder", ERROR, "dynamics", {"dynamics_loss": TRAINING, "dynamics_held_out_loss": HELD_OUT}),
    ("Policy autoencoder", ERROR, "dynamics", {"policy_loss": TRAINING, "policy_held_out_loss": HELD_OUT}),
    ("Policy decoder, aggregation", ERROR, "adapter", {"decoder_loss": TRAINING}),
    ("Value function W", f"{ERROR}, all members", "adapter", {"loss": TRAINING, "held_out_loss": HELD_OUT}),
    ("W at the embeddings it prefers", ERROR, "adapter", {"optimal_error": PLAYED}),
    ("Return of these embeddings", "mean return", "adapter", {"optimal_return": PLAYED}),
)
"""Panels: title, label, the artefact whose history has the metrics, and how each metric is drawn."""


def embeddings(run: Run) -> Figure | None:
    """t-SNE of z_d and z_pi, coloured by environment and by policy."""
    if not run.has("tsne_z_d", "tsne_z_pi", "tsne_policy", "tsne_environment"):
        return None
    found = run.embedded
    planes, labels = found.planes, {"environment": found.environment, "policy": found.policy}
    colours = environment_colours(run)
    test = set(run.numbers[run.is_test].tolist())

    figure = make_figure(11, 8.6)
    panels = figure.subplots(2, 2)
    for row, by in enumerate(("environment", "policy")):
        for column, (name, symbol) in enumerate((("z_d", r"$z_d$"), ("z_pi", r"$z_\pi$"))):
            axes: Axes = panels[row, column]
            for among_test, look in ((False, TRAIN_POINT), (True, TEST_POINT)):
                shown = np.isin(labels[by], list(test)) == among_test
                points = planes[name][shown].T
                axes.scatter(*points, c=[colours[n] for n in labels[by][shown].tolist()], alpha=0.9, **look)
            what = "Dynamics" if name == "z_d" else "Policy"
            tidy(axes, f"{what} embeddings {symbol}, by {by}", grid=None)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(True)
            axes.spines[:].set_color(GRID)
            axes.margins(0.06)

    handles = [
        Line2D(
            [], [], linestyle="", marker="^" if n in test else "o", color=colour, label=f"{n}{' (test)' * (n in test)}"
        )
        for n, colour in colours.items()
    ]
    legend(figure, handles, "right upper", ncols=1 if len(handles) <= 30 else 2)
    return figure


def environment_colours(run: Run) -> dict[int, Any]:
    """A colour of each environment by its number: around a circle, or along a line."""
    count = len(run.numbers)
    shades = circle_colours(count) if run.on_circle else colormaps["viridis"](np.linspace(0.1, 0.9, count))
    return dict(zip(run.numbers.tolist(), shades, strict=True))


def transfer(run: Run) -> Figure | None:
    """Return of each environment's finished policy in every environment, beside the paper's table."""
    if not run.has("transfer"):
        return None
    ours = run.evaluation["transfer"].mean(axis=1)
    theirs = paper.transfer(run.family)
    tables = [("This run", ours, run.numbers, int(np.sum(~run.is_test)))]
    if theirs is not None:
        numbers = np.arange(1, theirs.shape[1] + 1)
        tables.append(("The paper", theirs, numbers, 15))
    low, high = min(t[1].min() for t in tables), max(t[1].max() for t in tables)
    figure = make_figure(5.6 * len(tables) + 0.9, 5.4)
    panels = figure.subplots(1, len(tables), squeeze=False)[0]
    image = None
    for axes, (title, table, numbers, train) in zip(panels, tables, strict=True):
        image = axes.imshow(table, cmap="cividis", vmin=low, vmax=high)
        tidy(axes, title, "played in environment", "policy trained in environment", grid=None)
        ticks = np.arange(0, len(numbers), 1 if len(numbers) <= 10 else 2)
        axes.set_xticks(ticks, numbers[ticks])
        axes.set_yticks(ticks, numbers[ticks])
        axes.axvline(train - 0.5, color="white", linewidth=1.6)
        axes.axhline(train - 0.5, color="white", linewidth=1.6)
        axes.spines[:].set_visible(False)
        middle = (train + len(numbers) - 1) / 2
        axes.text(middle, -0.8, "test", ha="center", va="bottom", fontsize=SMALL, color=MUTED)
    colour_bar(figure, image, list(panels), "mean return")
    return figure


def paths(run: Run) -> Figure | None:
    """The first adapted episode of every model seed in each test environment, in the scene that the family draws."""
    family = run.made
    if not (run.has_paths and isinstance(family, DrawnFamily) and run.evaluation["path_observation"].shape[-1] == 2):
        return None
    test = np.flatnonzero(run.is_test)
    figure, panels = _panels(len(test), 5, 2.75, 3.3)
    for axes, e in zip(panels, test.tolist(), strict=True):
        family.draw_scene(axes, run.contexts[e])
        for seed in range(run.evaluation["path_valid"].shape[0]):
            path = run.path(seed, e)
            if not len(path):
                continue
            probe = family.probe_steps
            axes.plot(*path[probe:].T, color=TRAIN, linewidth=1.7, alpha=0.85, zorder=4)
            axes.plot(*path[: probe + 1].T, color=TEST, linewidth=2.2, alpha=0.9, zorder=5)
            axes.plot(*path[-1], "o", color=TRAIN, markersize=4.5, zorder=6, clip_on=False)
        mean = run.evaluation["returns"][:, e, 0].mean()
        axes.set_title(f"Environment {run.numbers[e]}\nreturn {mean:.3f}", fontsize=NORMAL, color=INK, pad=9)
    handles = [
        Line2D([], [], color=TEST, linewidth=2.2, label="probing"),
        Line2D([], [], color=TRAIN, linewidth=1.7, marker="o", markersize=4.5, label="adapted"),
        *(Line2D([], [], label=words, **style) for words, style in family.legend.items()),
    ]
    legend(figure, handles, "lower center", ncols=6)
    return figure


def learning_curves(run: Run) -> Figure | None:
    """Episode return of the policies of each environment while PPO trains them."""
    curves = run.curves()
    if curves is None or len(curves) not in (len(run.numbers), np.sum(~run.is_test)):
        return None
    is_test = run.is_test[: len(curves)]
    updates = curves.shape[1]
    size = math.ceil(updates / CURVE_POINTS)
    bins = [np.arange(first, min(first + size, updates)) for first in range(0, updates, size)]
    batch = run.option("ppo", "environments", default=1) * run.option("ppo", "rollout", default=1)
    steps = np.array([(b[-1] + 1) * batch for b in bins])
    smooth = np.stack([_nanmean(curves[:, b], axis=1) for b in bins], axis=1)
    figure = make_figure(11, 4.8)
    axes = figure.add_subplot()
    unit, name = (1e6, "million") if steps[-1] >= 1e6 else (1e3, "thousand")
    for chosen, colour, which in ((~is_test, TRAIN, "training"), (is_test, TEST, "test")):
        if not chosen.any():
            continue
        axes.plot(steps / unit, smooth[chosen].T, color=colour, linewidth=0.9, alpha=0.28)
        label, mean = f"mean of {int(chosen.sum())} {which} environments", _nanmean(smooth[chosen], axis=0)
        axes.plot(steps / unit, mean, color=colour, linewidth=2.8, label=label, zorder=3)
    tidy(axes, "", f"environment steps of each policy ({name})", "episode return")
    axes.set_xlim(0, steps[-1] / unit)
    legend(figure)
    return figure


def losses(run: Run) -> Figure | None:
    """Losses of both autoencoders and of W, and the return of the embeddings W prefers, stage by stage."""
    shown = []
    for title, y, artefact, metrics in LOSSES:
        found = [(run.history(artefact, metric), label, colour) for metric, (label, colour) in metrics.items()]
        lines = [(series, label, colour) for series, label, colour in found if series is not None]
        if lines:
            shown.append((title, y, lines))
    if not shown:
        return None
    figure, panels = _panels(len(shown), 3, 4.0, 3.2)
    for axes, (title, y, lines) in zip(panels, shown, strict=True):
        for series, label, colour in lines:
            stage = np.arange(1, len(series) + 1)
            if series.shape[1] > 1:
                axes.plot(stage, series, color=colour, linewidth=0.9, alpha=0.3)
            marker = "o" if len(stage) == 1 else None
            axes.plot(stage, _nanmean(series, axis=1), color=colour, linewidth=2.4, marker=marker, label=label)
        tidy(axes, title, "stage", y)
        if "error" in y:
            _log_scale(axes, np.concatenate([series.ravel() for series, _, _ in lines]))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlim(0.5, max(len(series) for series, _, _ in lines) + 0.5)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=NORMAL)
    return figure


def values(run: Run) -> Figure | None:
    """W's predictions against what was played."""
    if not run.has("value_predicted", "value_actual"):
        return None
    predicted, actual = run.evaluation["value_predicted"], run.evaluation["value_actual"]
    figure = make_figure(7.2, 6.2)
    axes = figure.add_subplot()
    ends = [actual.min(), actual.max(), predicted.min(), predicted.max()]
    hexagons = axes.hexbin(actual, predicted, gridsize=45, bins="log", mincnt=1, cmap="Blues", linewidths=0.1)
    hexagons.set_clim(0.5, None)  # so that single ones are not white
    if run.has("predicted", "returns"):
        chosen = [run.evaluation[name][:, run.is_test].mean(axis=2).ravel() for name in ("returns", "predicted")]
        label = "chosen embeddings, test environments"
        axes.scatter(*chosen, color=TEST, edgecolors="white", linewidths=0.7, s=46, zorder=4, label=label)
        ends += [f(c) for c in chosen for f in (np.min, np.max)]
    margin = 0.04 * (max(ends) - min(ends)) or 1.0
    limits = (min(ends) - margin, max(ends) + margin)
    axes.plot(limits, limits, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=3, label="prediction = return")
    axes.set(xlim=limits, ylim=limits, aspect="equal")
    tidy(axes, "", "actual return", "return predicted by W", grid="both")
    legend(figure)
    bar = colour_bar(figure, hexagons, axes, "policies' embeddings, training environments, per cell")
    bar.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.yaxis.set_minor_locator(NullLocator())
    if run.rank_correlation is not None:
        text = f"rank correlation {run.rank_correlation:.2f}"
        axes.text(0.97, 0.04, text, transform=axes.transAxes, ha="right", fontsize=NORMAL, color=INK)
    return figure


# Parts of figures


def _panels(count: int, columns: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """A figure of so many axes of a size, in rows."""
    columns = min(count, columns)
    rows = math.ceil(count / columns)
    figure = make_figure(width * columns, height * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _log_scale(axes: Axes, shown: np.ndarray) -> None:
    """A logarithmic axis with plain numbers, for values that span enough of one."""
    shown = shown[~np.isnan(shown)]
    low, high = (shown.min(), shown.max()) if shown.size else (0.0, 0.0)
    if low > 0 and high / low > 5:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())


def _nanmean(values: np.ndarray, axis: int) -> np.ndarray:
    """Mean of what is there, NaN where nothing is."""
    return np.ma.masked_invalid(values).mean(axis=axis).filled(np.nan)
