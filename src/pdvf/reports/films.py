"""Pictures of adapted agents: a strip of frames and a short film for each test environment, where a family renders.

An agent of the run plays one episode in each test environment anew. MuJoCo models are then drawn, the camera following
the body; environments of Gymnasium that were made with `render_mode="rgb_array"` draw themselves, in their workers; and
the paths of a `DrawnFamily` are drawn into its scene.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pdvf.config import from_dict
from pdvf.engines import make_engine
from pdvf.engines.film_file import FilmFile
from pdvf.engines.mujoco_c import BitState
from pdvf.engines.rendering import paint_all
from pdvf.engines.rollout import play
from pdvf.experiment.store import RunStore
from pdvf.families import GymFamily, MujocoFamily
from pdvf.families.base import DrawnFamily
from pdvf.methods import METHODS, agent_artefact
from pdvf.methods.play import acting_agent, begin_agent
from pdvf.paper.pipeline import ArtefactShapes, Problem
from pdvf.paper.problem import Stream
from pdvf.reports.data import Run
from pdvf.reports.style import INK, NORMAL, SMALL, TEST, TRAIN, make_figure
from pdvf.reports.tables import ours

STRIP, FILM = 6, 48
"""Frames of a strip and of a film."""
SIZE = (320, 240)
"""Of a frame."""
RATE = 12.5
"""Frames of a film in a second."""
SHOWN_SECONDS, SHOWN_STEPS = 8.0, 200
"""Of the agent's time in a film: its first, which hold the probing and the change of policy."""
LABEL = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}


class FilmedEpisode(NamedTuple):
    """An episode in a test environment: pictures [n, height, width, 3] after some of its steps."""

    environment: int
    method: str
    returned: float
    steps: tuple[int, ...]
    filmed: int
    """So many of the pictures are the film; the rest are the strip's."""
    pictures: np.ndarray


class Film(NamedTuple):
    """A film of one test environment."""

    environment: int
    data: bytes
    kind: str
    """mp4, or gif where PyAV is not installed."""


def film_episodes(store: RunStore, run: Run) -> list[FilmedEpisode]:
    """An episode of the run's best method of ours in each test environment, with pictures; none that has no pictures.

    Raises ConfigError where a family fails to make pictures.
    """
    if isinstance(run.made, DrawnFamily):
        return _drawn(run, run.made)
    method = next((name for name in ours(run) if store.has(agent_artefact(name))), None)
    if method is None or not _makes_pictures(run.made):
        return []
    problem, family = Problem(from_dict(dict(run.config))), cast(Any, run.made)
    engine = make_engine(family, "c" if isinstance(family, MujocoFamily) else "host", problem.config.seed)
    agent = jax.tree.map(lambda x: x[0], _agents(store, problem, method))
    split = family.test(problem.config.seed)
    returns, lengths, simulator, poses = _play(
        engine, agent, jnp.asarray(split.contexts), problem.key(Stream.COMPARISON)
    )
    found = []
    for e, number in enumerate(split.numbers):
        steps, filmed = _shown(int(lengths[e]), getattr(family, "control_step", 0.0))
        if isinstance(family, MujocoFamily):
            pictures = paint_all(family, split.contexts[e], poses[list(steps), e], SIZE)
        else:
            actions = np.asarray(simulator.history[e])[: lengths[e]]
            pictures = family.pool.film(split.contexts[e].tobytes(), int(simulator.start[e]), actions, steps)
        if pictures is not None:
            found.append(FilmedEpisode(number, method, float(returns[e]), steps, filmed, pictures))
    return found


def _makes_pictures(family: Any) -> bool:
    """Whether there is anything to see: a MuJoCo model, or environments that were made to draw themselves."""
    if isinstance(family, GymFamily):
        context = family.test(0).contexts[0].tobytes()
        return family.pool.film(context, 0, np.zeros((0, family.action.size)), [0]) is not None
    return isinstance(family, MujocoFamily)


def _agents(store: RunStore, problem: Problem, method: str) -> Any:
    """The agents [S, ...] of a method that the run has."""
    from pdvf.experiment.plan import recipes_for

    name = agent_artefact(method)
    return store.load(name, ArtefactShapes(problem, recipes_for([METHODS[method]]))[name])


def _play(engine: Any, agent: Any, contexts: Any, key: Any) -> tuple[np.ndarray, np.ndarray, Any, np.ndarray]:
    """Returns [n] and lengths [n] of one episode in each context, how they ended, and all poses [T + 1, n, nq]."""
    one_step = jax.jit(lambda agent, episodes: play(engine, contexts, episodes, acting_agent(agent), None, 1))
    episodes, probed = begin_agent(engine, agent, contexts, None, key), []
    lengths, poses = np.zeros(len(contexts), int), [_pose(episodes.simulator)]
    for step in range(1, engine.family.horizon + 1):
        lengths += np.asarray(episodes.alive)
        episodes, transitions = one_step(agent, episodes)
        poses.append(_pose(episodes.simulator))
        if step <= engine.family.probe_steps:
            probed.append(transitions)
        if step == engine.family.probe_steps:
            together = jax.tree.map(lambda *x: jnp.concatenate(x).swapaxes(0, 1), *probed)
            episodes = episodes._replace(memory=jax.vmap(agent.adapt)(episodes.memory, together))
        if not np.any(episodes.alive):
            break
    return np.asarray(episodes.returns), lengths, episodes.simulator, np.array(poses)


def _pose(simulator: Any) -> np.ndarray:
    """Positions [n, nq] of MuJoCo models; nothing of others."""
    return np.asarray(simulator.physics.qpos if isinstance(simulator, BitState) else ())


def _shown(length: int, control_step: float) -> tuple[tuple[int, ...], int]:
    """Steps of a film and of a strip, and how many of them the film has."""
    last = min(length, round(SHOWN_SECONDS / control_step) if control_step else SHOWN_STEPS)
    whole = [np.linspace(0, end, count).astype(int).tolist() for end, count in ((last, FILM), (length, STRIP))]
    steps = sorted({step for steps in whole for step in steps})
    return tuple(steps), sum(step <= last for step in steps)


def _drawn(run: Run, family: DrawnFamily) -> list[FilmedEpisode]:
    """Episodes of the first model of PD-VF, drawn into the family's scene as they go."""
    return [_drawn_one(run, family, e) for e in np.flatnonzero(run.is_test).tolist()] if run.has_paths else []


def _drawn_one(run: Run, family: DrawnFamily, e: int) -> FilmedEpisode:
    path = run.path(0, e)
    figure = Figure(figsize=(3.2, 3.2), dpi=100, facecolor="white")
    canvas, axes = FigureCanvasAgg(figure), figure.add_axes((0.06, 0.06, 0.88, 0.88))  # for what lies on the border
    family.draw_scene(axes, run.contexts[e])
    canvas.draw()
    scene, pictures = canvas.copy_from_bbox(figure.bbox), []
    (adapted,) = axes.plot([], [], color=TRAIN, linewidth=2.2)
    (probing,) = axes.plot([], [], color=TEST, linewidth=2.6)
    (place,) = axes.plot([], [], "o", color=TRAIN, markersize=7)
    for now in range(1, len(path) + 1):
        canvas.restore_region(scene)
        for line, points in (
            (adapted, path[:now]),
            (probing, path[: min(now, family.probe_steps + 1)]),
            (place, path[now - 1 : now]),
        ):
            line.set_data(*points.T)
            axes.draw_artist(line)
        pictures.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    returned = float(run.evaluation["returns"][0, e, 0])
    return FilmedEpisode(int(run.numbers[e]), "pd-vf", returned, tuple(range(len(path))), len(path), np.stack(pictures))


def strips(run: Run) -> Figure | None:
    """Frames from the whole adapted episode, one row a test environment."""
    if not run.filmed or isinstance(run.made, DrawnFamily):
        return None
    family: Any = run.made
    figure = make_figure(1.9 * STRIP + 1.3, 1.52 * len(run.filmed))
    figure.set_facecolor("none")  # dark pages show through between the pictures, and words stand in boxes
    panels = figure.subplots(len(run.filmed), STRIP, squeeze=False, gridspec_kw={"wspace": 0.02, "hspace": 0.02})
    for row, seen in zip(panels, run.filmed, strict=True):
        wanted = np.linspace(0, seen.steps[-1], STRIP).astype(int)
        for axes in row:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.patch.set_visible(False)
        for axes, step in zip(row, np.unique(wanted).tolist(), strict=False):
            axes.imshow(seen.pictures[seen.steps.index(step)])
            words = f"step {step}"
            axes.text(0.03, 0.95, words, transform=axes.transAxes, va="top", fontsize=SMALL, color=INK, bbox=LABEL)
        words = f"Environment {seen.environment}\nreturn {run.number(seen.returned)}"
        row[0].set_ylabel(
            words, fontsize=NORMAL, color=INK, rotation=0, ha="right", va="center", labelpad=8, bbox=LABEL
        )
    words = f"first model of {run.label(run.filmed[0].method)}"
    words += f"; the arrow is the hidden {arrow}" if (arrow := getattr(family, "arrow", None)) else ""
    figure.supxlabel(words, fontsize=NORMAL, color=INK, bbox=LABEL)
    return figure


def films(filmed: Sequence[FilmedEpisode]) -> list[Film]:
    """The beginning of these episodes as moving pictures."""
    made = []
    for seen in filmed:
        file = FilmFile(RATE, colours=64, options={"crf": "23", "threads": "1"})
        for picture in seen.pictures[: seen.filmed]:
            file.add(picture)
        made.append(Film(seen.environment, file.finish(), file.kind))
    return made
