"""The picture of a diagnosis: one panel for each of its five numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pdvf.reports.style import INK, MUTED, NORMAL, TEST, TRAIN, circle_colours, make_figure, tidy

BEST = "#009e73"
KNOWN = {"best known embedding": "known", "W's choice of them": "ranked", "optimum": "optimal"}


def draw(numbers: tuple[int, ...], measured: Mapping[str, np.ndarray]) -> Figure:
    """From the numbers of the training environments and the arrays of `diagnose.Measured` by name."""
    sampled, predicted = measured["sampled"], measured["predicted"]
    figure = make_figure(13.5, 8.2)
    panels = figure.subplots(2, 3)
    places = np.arange(len(numbers))
    for axes, title, shown in (
        (panels[0, 0], "Experts", {"best of all": "hindsight", "its own": "own"}),
        (panels[0, 1], "Decoder: experts, decoded", {"expert": "own", "decoded": "decoded"}),
        (panels[1, 0], "Optimum and known embeddings", KNOWN),
    ):
        _dots(axes, places, {label: measured[name] for label, name in shown.items()})
        tidy(axes, title, "training environment", "return")
    panels[0, 2].scatter(sampled.ravel(), predicted.ravel(), s=5, color=TRAIN, alpha=0.25, linewidths=0)
    ends = [float(min(sampled.min(), predicted.min())), float(max(sampled.max(), predicted.max()))]
    panels[0, 2].plot(ends, ends, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    tidy(panels[0, 2], "Ranking: what W says of policies", "actual return", "predicted return", grid="both")
    _manifold(panels[1, 1], measured["z_d"])
    tidy(panels[1, 1], "Dynamics: first two components of z_d", "first", "second", grid="both")
    panels[1, 2].bar(places, measured["nearness"], color=TRAIN)
    tidy(panels[1, 2], "Optimum: nearness to a known one", "training environment", "|cosine|")
    panels[1, 2].set_ylim(0, 1)
    for axes in (panels[0, 0], panels[0, 1], panels[1, 0], panels[1, 2]):
        axes.set_xticks(places[::2], [str(number) for number in numbers[::2]])
    return figure


def _dots(axes: Axes, places: np.ndarray, rows: dict[str, np.ndarray]) -> None:
    values = np.stack(list(rows.values()))
    axes.vlines(places, values.min(axis=0), values.max(axis=0), color=MUTED, linewidth=1)
    for (name, row), colour in zip(rows.items(), (BEST, TRAIN, TEST), strict=False):
        axes.plot(places, row, "o", color=colour, markersize=6, label=name)
    axes.legend(frameon=False, fontsize=NORMAL)


def _manifold(axes: Axes, z_d: np.ndarray) -> None:
    """z_d [E, P, d] in the plane of its greatest spread, one colour an environment."""
    environments, probes, size = z_d.shape
    flat = z_d.reshape(-1, size) - z_d.reshape(-1, size).mean(axis=0)
    plane = flat @ np.linalg.svd(flat, full_matrices=False)[2][:2].T
    axes.scatter(*plane.T, c=np.repeat(circle_colours(environments), probes, axis=0), s=18, linewidths=0)
    axes.locator_params(nbins=5)  # labels such as -0.025 are wide
