"""How figures look: one look for all axes, and figures as PNG.

Nothing here touches matplotlib's global state, so a report can be made in any thread of any program.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pdvf.methods import METHODS, Look

INK, MUTED, GRID = "#1f2328", "#6a737d", "#e6e8eb"
TRAIN, TEST = "#0072b2", "#d55e00"
SMALL, NORMAL, LARGE = 9.5, 11, 12.5
DPI = 150


def look(method: str) -> Look:
    """How a method is shown; one that is not ours is grey."""
    found = METHODS[method].look if method in METHODS else Look()
    return found._replace(label=found.label or method)


def rank(method: str) -> int:
    """Place of a method in tables and legends."""
    return look(method).place


def circle_colours(count: int) -> np.ndarray:
    """Colours [count, 3] around a circle, the last next to the first.

    The circle lies in Oklab's plane of lightness and blue-yellow, which all common kinds of colour vision see; the
    red-green axis only adds to it.
    """
    turn = 2 * np.pi * np.arange(count) / count
    lab = np.stack([0.62 + 0.18 * np.cos(turn), 0.10 * np.cos(turn - 0.6), 0.13 * np.sin(turn)], axis=-1)
    to_cone = [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
    to_red = [4.0767416621, -3.3077115913, 0.2309699292]
    to_green = [-1.2684380046, 2.6097574011, -0.3413193965]
    to_blue = [-0.0041960863, -0.7034186147, 1.7076147010]
    linear = np.clip((lab @ np.transpose(to_cone)) ** 3 @ np.transpose([to_red, to_green, to_blue]), 0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def make_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.09)  # pyright: ignore
    return figure


def tidy(axes: Axes, title: str = "", x: str = "", y: str = "", grid: Literal["x", "y", "both"] | None = "y") -> None:
    """The look that all axes share."""
    axes.set_title(title, fontsize=LARGE, color=INK, loc="left", pad=8)
    axes.set_xlabel(x, fontsize=NORMAL, color=INK)
    axes.set_ylabel(y, fontsize=NORMAL, color=INK)
    axes.tick_params(labelsize=SMALL, colors=MUTED, labelcolor=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=GRID, linewidth=0.8)


def legend(figure: Any, handles: Sequence[Any] | None = None, place: str = "upper left", ncols: int = 2) -> None:
    """A legend outside of all axes, of what is drawn or of these handles."""
    more = {} if handles is None else {"handles": handles}
    figure.legend(loc=f"outside {place}", ncols=ncols, frameon=False, fontsize=NORMAL, **more)


def colour_bar(figure: Figure, drawn: Any, axes: Any, label: str) -> Axes:
    """The key to the colours of an image or of hexagons."""
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85, pad=0.02)
    bar.set_label(label, fontsize=NORMAL, color=INK)
    bar.ax.tick_params(labelsize=SMALL, colors=MUTED, labelcolor=INK, length=3)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return bar.ax


def png(figure: Figure) -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
