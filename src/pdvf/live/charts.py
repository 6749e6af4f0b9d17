"""Small charts as SVG, for pages that change while one looks: lines, bars, and an ellipse in a plane.

Colours that must do on light and on dark are `currentColor`. All words that are given are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

AGENT, GHOST, TRUTH = "#1f77d0", "#68707c", "#cc430d"
"""Words in them are read on the white of the panel: a contrast of 4.5 and more."""
WIDTH = 300
"""In units of the drawing, which is as wide as its place."""
LETTERS = 11
POINTS = 300
"""Of a line: longer ones are thinned."""


class Line(NamedTuple):
    """A line of a chart: x [n], y [n]."""

    x: np.ndarray
    y: np.ndarray
    colour: str
    name: str


def line_chart(lines: Sequence[Line], height: int = 100, level: float | None = None, label: str = "") -> str:
    """Lines over a common x; `level` is a horizontal line that is named."""
    drawn = [_finite(line) for line in lines]
    if not any(len(line.x) for line in drawn):
        return _svg(height, _text(WIDTH / 2, height / 2, "nothing yet", "middle"))
    x = np.concatenate([line.x for line in drawn])
    y = np.concatenate([line.y for line in drawn] + ([np.array([level])] if level is not None else []))
    left, right, top, bottom = 46.0, WIDTH - 6.0, 16.0, height - 16.0
    low, high = _range(y)
    first, last = float(x.min()), max(float(x.max()), float(x.min()) + 1e-9)
    parts = []
    for value in (low, high):
        at = _between(value, low, high, bottom, top)
        parts.append(_level(left, right, at, 'stroke="currentColor" opacity=".18"'))
        parts.append(_text(left - 4, at + 4, _number(value), "end"))
    if level is not None:
        at = _between(level, low, high, bottom, top)
        parts.append(_level(left, right, at, f'stroke="{TRUTH}" stroke-dasharray="4 3"'))
        parts.append(_text(right, at + 12 if at < height / 2 else at - 4, label, "end", TRUTH))
    for line in drawn:
        across, up = _between(line.x, first, last, left, right), _between(line.y, low, high, bottom, top)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="2"/>')
    parts.append(_text(left, height - 3, _number(first)))
    parts.append(_text(right, height - 3, _number(last), "end"))
    for i, line in enumerate(lines):
        colour = line.colour if len(lines) > 1 else "currentColor"
        parts.append(_text(left + i * (right - left) / len(lines), 10, line.name, "start", colour))
    return _svg(height, *parts)


def bars(values: np.ndarray, low: np.ndarray, high: np.ndarray, height: int = 44) -> str:
    """Values [n] between their bounds [n], each a bar from the middle."""
    if not len(values):
        return ""
    share = np.clip((values - low) / np.where(high > low, high - low, 1.0), 0, 1) - 0.5
    wide, middle = (WIDTH - 8) / len(values), height / 2
    parts = [_level(4, WIDTH - 4, middle, 'stroke="currentColor" opacity=".3"')]
    for i, x in enumerate(share.tolist()):
        top, tall = middle - max(x, 0) * (height - 4), abs(x) * (height - 4)
        parts.append(
            f'<rect x="{4 + i * wide + wide * 0.15:.1f}" y="{top:.1f}" width="{wide * 0.7:.1f}" height="{tall:.1f}" '
            f'fill="{AGENT}"/>'
        )
    return _svg(height, *parts)


class Belief(NamedTuple):
    """What there is to see in the plane of beliefs: points [.., 2]."""

    mean: np.ndarray | None
    covariance: np.ndarray | None  # [2, 2]
    truth: np.ndarray | None
    known: np.ndarray  # [n, 2] of the training environments, if there are any
    reach: float  # the plane shows at least so far from 0


def belief_chart(belief: Belief, height: int = 160) -> str:
    """The estimate with its ellipse of two standard deviations, the truth as a cross, what is known as small dots."""
    shown = [np.atleast_2d(p) for p in (belief.mean, belief.truth, belief.known) if p is not None and len(p)]
    far = max([belief.reach, *(float(np.abs(points).max()) * 1.15 for points in shown)])
    scale = (height / 2 - 6) / far

    def at(point: np.ndarray) -> tuple[float, float]:
        return WIDTH / 2 + float(point[0]) * scale, height / 2 - float(point[1]) * scale

    across = f"M{WIDTH / 2 - height / 2} {height / 2}h{height}M{WIDTH / 2} 0v{height}"
    parts = [f'<path d="{across}" stroke="currentColor" opacity=".15"/>']
    for point in belief.known:
        x, y = at(point)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="currentColor" opacity=".3"/>')
    if belief.truth is not None:
        x, y = at(belief.truth)
        cross = f"M{x - 6:.1f} {y:.1f}h12M{x:.1f} {y - 6:.1f}v12"
        parts.append(f'<path class="truth" d="{cross}" stroke="{TRUTH}" stroke-width="2.5"/>')
    if belief.mean is not None:
        x, y = at(belief.mean)
        if belief.covariance is not None:
            sizes, axes = np.linalg.eigh(belief.covariance)
            wide, tall = 2 * scale * np.sqrt(np.maximum(sizes[::-1], 0))
            turn = -np.degrees(np.arctan2(axes[1, 1], axes[0, 1]))
            parts.append(
                f'<ellipse rx="{wide:.1f}" ry="{tall:.1f}" transform="translate({x:.1f} {y:.1f}) rotate({turn:.1f})" '
                f'fill="{AGENT}" fill-opacity=".15" stroke="{AGENT}"/>'
            )
        parts.append(f'<circle class="belief" cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{AGENT}"/>')
    return _svg(height, *parts)


# --------------------------------------------------------------------------------------------------------------------


def _svg(height: int, *parts: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" style="display:block;width:100%;height:auto" font-size="{LETTERS}" '
        f'font-family="system-ui,sans-serif">{"".join(parts)}</svg>'
    )


def _level(left: float, right: float, y: float | np.ndarray, style: str) -> str:
    return f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" {style}/>'


def _text(x: float, y: float | np.ndarray, words: str, anchor: str = "start", colour: str = "currentColor") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{escape(colour)}">{escape(words)}</text>'


def _number(value: float) -> str:
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def _between(values: np.ndarray | float, low: float, high: float, first: float, last: float) -> np.ndarray:
    return first + (np.asarray(values, float) - low) / (high - low) * (last - first)


def _range(values: np.ndarray) -> tuple[float, float]:
    """A range that all values are in and that is not empty."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _finite(line: Line) -> Line:
    good = np.isfinite(line.x) & np.isfinite(line.y)
    x, y = line.x[good], line.y[good]
    keep = np.unique(np.linspace(0, len(x) - 1, POINTS).astype(int)) if len(x) > POINTS else slice(None)
    return line._replace(x=x[keep], y=y[keep])
