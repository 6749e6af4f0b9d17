"""Pictures of adapted MuJoCo agents: a strip of frames and a short film for each test environment."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from pdvf.engines.rendering import paint_all
from pdvf.families.base import MujocoFamily, Simulated
from pdvf.families.mujoco import base_model
from pdvf.reports.data import Run
from pdvf.reports.style import INK, MUTED, NORMAL, SMALL, make_figure

STRIP, FILM = 6, 48
"""Frames of a strip and of a film."""
STRIP_SIZE, FILM_SIZE = (320, 240), (240, 180)
MILLISECONDS = 80
"""Of one frame of a film."""
SHOWN_SECONDS = 8.0
"""Of the agent's time in a film: its first, which hold the probing and the change of policy."""
LABEL = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
ABSENT_PLACE = 2
"""Positions that the observation of these families leaves out: x and y."""


class Film(NamedTuple):
    """A film of one test environment, as a GIF."""

    environment: int
    gif: bytes


def shown_family(run: Run) -> Any:
    """The simulated family of a run that kept episodes whose poses can be told from observations; None for others."""
    family = run.made
    if (
        not run.has("path_observation", "path_valid", "contexts")
        or not isinstance(family, Simulated)
        or not isinstance(family, MujocoFamily)
    ):
        return None
    assert isinstance(family, MujocoFamily)
    return family if family.observation.size == run.evaluation["path_observation"].shape[-1] else None


def strips(run: Run) -> Figure | None:
    """Frames from the whole adapted episode, one row a test environment."""
    family, test = shown_family(run), np.flatnonzero(run.is_test)
    if family is None:
        return None
    figure = make_figure(1.9 * STRIP + 1.3, 1.52 * len(test))
    panels = figure.subplots(len(test), STRIP, squeeze=False, gridspec_kw={"wspace": 0.02, "hspace": 0.02})
    for row, e in zip(panels, test.tolist(), strict=True):
        poses = _poses(run, family, e)
        chosen = np.unique(np.linspace(0, len(poses) - 1, STRIP).astype(int))
        pictures = paint_all(family, run.contexts[e], poses[chosen], STRIP_SIZE)
        for axes in row:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for axes, picture, step in zip(row, pictures, chosen.tolist(), strict=False):
            axes.imshow(picture)
            words = f"step {step}, x = {poses[step, 0]:.1f}"
            axes.text(0.03, 0.95, words, transform=axes.transAxes, va="top", fontsize=SMALL, color=INK, bbox=LABEL)
        returned = float(run.evaluation["returns"][0, e, 0])
        words = f"Environment {run.numbers[e]}\nreturn {returned:.0f}"
        row[0].set_ylabel(words, fontsize=NORMAL, color=INK, rotation=0, ha="right", va="center", labelpad=8)
    probing = f"{family.probe_steps} probing step{'s' * (family.probe_steps > 1)}"
    words = f"first model, first episode; {probing}, then the chosen policy"
    words += f"; the arrow is the hidden {family.arrow}" if family.arrow else ""
    figure.supxlabel(words, fontsize=NORMAL, color=MUTED)
    return figure


def films(run: Run) -> list[Film]:
    """The beginning of the same episodes as moving pictures."""
    family, made = shown_family(run), []
    if family is None:
        return []
    for e in np.flatnonzero(run.is_test).tolist():
        poses = _poses(run, family, e)
        last = min(len(poses) - 1, round(SHOWN_SECONDS / family.control_step))
        chosen = np.unique(np.linspace(0, last, FILM).astype(int))
        pictures = paint_all(family, run.contexts[e], poses[chosen], FILM_SIZE)
        made.append(Film(int(run.numbers[e]), _gif(pictures)))
    return made


def _poses(run: Run, family: Any, e: int) -> np.ndarray:
    """Positions [t, nq] along the first episode: the place, which no observation has, from its velocities."""
    valid = run.evaluation["path_valid"][0, e].astype(bool)
    observation = run.evaluation["path_observation"][0, e][valid]
    known = base_model(family).nq - ABSENT_PLACE
    speed = observation[:, known : known + ABSENT_PLACE]
    place = np.cumsum(np.concatenate([np.zeros((1, ABSENT_PLACE)), speed[:-1]]), axis=0) * family.control_step
    return np.concatenate([place, observation[:, :known]], axis=1)


def _gif(pictures: np.ndarray) -> bytes:
    frames = [Image.fromarray(picture).quantize(64) for picture in pictures]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=MILLISECONDS, loop=0)
    return buffer.getvalue()
