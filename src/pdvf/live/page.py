"""`pdvf play`: a page in the browser, drawn by viser, with a simulation of its own for every tab.

A tab is one thread that steps its `LiveSession` in real time and sends what has changed; it ends with the tab.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
import viser

from pdvf.core.validation import OneLineError
from pdvf.deploy.belief_runtime import BeliefAdapter
from pdvf.deploy.model_format import read
from pdvf.deploy.runtime import Adapter
from pdvf.deploy.value_runtime import ValueAdapter
from pdvf.engines.film_file import FilmFile
from pdvf.families.base import Family
from pdvf.live import charts
from pdvf.live.gate import Door
from pdvf.live.scenes import Scene, make_scene
from pdvf.live.server import Server
from pdvf.live.session import LiveSession, estimate, measure_truth

FRAMES = 30
"""Frames a second."""
CHART_FRAMES = 6
"""Numbers and charts change every so many of them."""
PAUSE = 1.0
"""Seconds for which the end of an episode stands."""
MOST_TABS = 6
"""Open at once."""
SPEEDS = ("0.25", "0.5", "1", "2", "4")
UNLIKE = {1.2: "like training", 3.0: "somewhat unlike training", np.inf: "unlike anything in training"}
NEW = "new episode"
FILM_SIZE, FILM_SECONDS = (720, 480), 60
PANEL, PANEL_WIDTH, PHONE_WIDTH = 0.55, 388, 576
"""viser's panel: its share of a phone's height, its pixels beside other scenes, and the widest screen of a phone."""
PHONE = """<style class="pdvf-live">@media (max-width: 36em) {
.mantine-Paper-root:has(.pdvf-live) { width: 100% !important; max-height: 55% !important; }
.mantine-Paper-root:has(.pdvf-live) .mantine-ScrollArea-viewport > div > div { width: 100% !important; }
}</style>"""
"""viser's panel on a phone, over the whole width."""


class Page:
    """The server and its tabs."""

    def __init__(self, family: Family, file: Path, host: str, port: int) -> None:
        self._family, self._file = family, file
        warnings.filterwarnings("ignore", "Queued a .* on a closed connection")  # a tab closes when it likes
        session = LiveSession(family, file)
        session.step()  # compiles, and says what is wrong before anybody looks
        session.close()
        self.tabs: dict[int, Tab] = {}
        self._lock = threading.Lock()
        door = Door(host, port)
        self._server, self.url = Server(door, file.stem), door.url
        self._server.gui.configure_theme(show_logo=False, show_share_button=False, control_width="large")
        self._server.gui.main_panel.dock_right()
        self._server.on_client_connect(self._open)
        self._server.on_client_disconnect(self._close)

    def _open(self, client: viser.ClientHandle) -> None:
        with self._lock:
            room = len(self.tabs) < MOST_TABS
            if room:
                self.tabs[client.client_id] = Tab(client, self._family, self._file)
        if not room:
            client.gui.add_markdown(f"{MOST_TABS} tabs are open, which is the most: close one and reload this page.")

    def _close(self, client: viser.ClientHandle) -> None:
        with self._lock:
            tab = self.tabs.pop(client.client_id, None)
        if tab is not None:
            tab.close()

    def stop(self) -> None:
        """Ends it."""
        for tab in list(self.tabs.values()):
            tab.close()
        self._server.stop()


class Tab:
    """One visitor: a session, its scene, and what there is to press."""

    def __init__(self, client: viser.ClientHandle, family: Family, file: Path) -> None:
        self._client = client
        self.session = LiveSession(family, file)
        self._scene: Scene = make_scene(client.scene, self.session)
        self._truth: np.ndarray | None = None
        self._known = read(file)[1].get("train_z_d", np.zeros((0, 2)))
        self._film: FilmFile | None = None
        self._pressed, self._stopped, self.frames = "", False, 0
        width, height = client.camera.image_width, max(client.camera.image_height, 1)
        phone = width <= PHONE_WIDTH
        free = width if phone else max(width - PANEL_WIDTH, PHONE_WIDTH - PANEL_WIDTH)
        look = self._scene.look.fitted(free / height, client.camera.fov, PANEL if phone else 0.0)
        client.camera.position, client.camera.look_at = look.position, look.look_at
        self._build()
        self._worker = threading.Thread(target=self._run, daemon=True)
        self._worker.start()

    # What there is to press ------------------------------------------------------------------------------------------

    def _build(self) -> None:
        gui, session = self._client.gui, self.session
        gui.add_html(PHONE)
        self._numbers = gui.add_html("")
        with gui.add_folder("What is hidden"):
            self._sliders = [
                gui.add_slider(
                    dial.name.replace("_", " "),
                    min=rounded(dial.low),
                    max=max(rounded(dial.high), rounded(dial.low)),
                    step=rounded(dial.high - dial.low) / 200 or 1.0,
                    initial_value=float(np.clip(rounded(value), rounded(dial.low), rounded(dial.high))),
                    disabled=dial.high <= dial.low,
                )
                for dial, value in zip(session.dials, session.context.tolist(), strict=True)
            ]
            if session.restarts:
                gui.add_markdown("A change begins another episode.")
        for slider in self._sliders:
            slider.on_update(lambda _: session.set_context(np.array([s.value for s in self._sliders])))
        with gui.add_folder("Play"):
            self._pause = gui.add_checkbox("pause", False)
            self._speed = gui.add_dropdown("speed", SPEEDS, initial_value="1")
            self._buttons = gui.add_button_group("", (NEW, "record"))

            @self._buttons.on_click
            def _(_: object) -> None:
                self._pressed = self._buttons.value  # for the tab's own thread

        self._charts = gui.add_html("")

    # The loop --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
        except OneLineError as error:
            self._client.add_notification("The episode cannot go on", str(error), color="red")
        finally:
            self.session.close()

    def _loop(self) -> None:
        session, clock, stood = self.session, 0.0, 0.0
        self._context_changed()
        self._show_step(True)
        due = time.perf_counter()
        while not self._stopped:
            start = time.perf_counter()
            pressed, self._pressed = self._pressed, ""
            if pressed == NEW:
                stood = 0.0
                session.begin()
                self._show_step(True)
            elif pressed:
                self._start_or_save()
            if not self._pause.value:
                if session.over and stood < PAUSE:
                    stood += 1 / FRAMES
                else:
                    clock += float(self._speed.value) / FRAMES
                    clock, stood = self._advance(clock), 0.0
            with self._client.atomic():
                self._scene.draw(min(clock / session.control_step, 1.0))
                if self.frames % CHART_FRAMES == 0:
                    self._show()
            self.frames += 1
            self._take()
            due = max(due + 1 / FRAMES, start)  # a frame that is late is not made up for
            time.sleep(max(0.0, due - time.perf_counter()))

    def _advance(self, clock: float) -> float:
        """Makes the steps that are due and returns the time that is left."""
        session = self.session
        until = time.perf_counter() + 1 / FRAMES
        while clock >= session.control_step and not self._stopped:
            clock -= session.control_step
            episode, context = session.episode, session.context
            session.step()
            if not np.array_equal(context, session.context):
                self._context_changed()
            self._show_step(session.episode != episode)
            if session.over or time.perf_counter() > until:  # what cannot be done in time is left out
                return 0.0
        return clock

    def _show_step(self, first: bool) -> None:
        self._scene.step(self.session.agent.simulation.shown, self.session.ghost.simulation.shown, first)

    def _context_changed(self) -> None:
        context = self.session.context
        self._scene.set_context(context)
        self._truth = None
        threading.Thread(target=self._measure, args=(context,), daemon=True).start()

    def _measure(self, context: np.ndarray) -> None:
        time.sleep(0.3)  # a slider that is being moved
        if not self._stopped and np.array_equal(context, self.session.context):
            with contextlib.suppress(OneLineError):  # which the episode itself will meet
                self._truth = measure_truth(self.session.family, self.session.file, context)

    # What is said ----------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        agent, ghost, session = self.session.agent, self.session.ghost, self.session
        adapter, number = agent.adapter, "{:.4g}".format
        lines = [
            f'<div style="display:flex;gap:1.2em;align-items:baseline;flex-wrap:wrap">'
            f'<span style="color:{charts.AGENT}"><b style="font-size:1.6em">{number(agent.worth)}</b> adapts</span>'
            f'<span style="color:{charts.GHOST}"><b style="font-size:1.6em">{number(ghost.worth)}</b> does not'
            f"</span></div>",
            f"step {agent.steps} of at most {session.family.horizon}; {_phase(adapter)}",
        ]
        if np.isfinite(adapter.predicted_return):
            lines.append(f"predicted return <b>{number(adapter.predicted_return)}</b>")
        unlike = adapter.out_of_distribution
        if np.isfinite(unlike):
            words = next(words for most, words in UNLIKE.items() if unlike <= most)
            lines.append(f"out of distribution <b>{unlike:.2f}</b>: {words}")
        if session.finished:
            ours, theirs = (np.mean([getattr(f, who) for f in session.finished]) for who in ("agent", "ghost"))
            count = len(session.finished)
            lines.append(
                f"mean of {count} episode{'s' * (count > 1)}: <b>{number(ours)}</b> adapts, "
                f"<b>{number(theirs)}</b> does not"
            )
        if self._scene.notice:
            lines.append(escape(self._scene.notice))
        self._numbers.content = _block(lines[0], "<br>".join(lines[1:]))
        self._charts.content = _block(
            _titled("Return so far", self._returns())
            + _titled(self._belief_title, charts.belief_chart(self._belief()))
            + _titled("Action", charts.bars(agent.action, session.family.action.low, session.family.action.high))
        )

    def _returns(self) -> str:
        agent, ghost = self.session.agent, self.session.ghost
        shown = (agent, charts.AGENT, "adapts"), (ghost, charts.GHOST, "does not adapt")
        lines = [
            charts.Line(np.arange(len(player.worths), dtype=float), np.array(player.worths), colour, name)
            for player, colour, name in shown
        ]
        predicted = agent.adapter.predicted_return
        return charts.line_chart(lines, level=predicted if np.isfinite(predicted) else None, label="predicted")

    @property
    def _belief_title(self) -> str:
        if isinstance(self.session.agent.adapter, ValueAdapter):
            return "z_d; the cross is what many probings give, dots are training"
        return "Belief, ± 2 standard deviations; the cross is that of a long episode"

    def _belief(self) -> charts.Belief:
        found = estimate(self.session.agent.adapter)
        known = self._known
        size = known.shape[1] if found is None else len(found.mean)
        plane = _Plane.of(known) if len(known) else _Plane(np.zeros(size), np.eye(2, size))
        return charts.Belief(
            None if found is None else plane.at(found.mean),
            None if found is None or found.covariance is None else plane.axes @ found.covariance @ plane.axes.T,
            None if self._truth is None else plane.at(self._truth),
            plane.at(known) if len(known) else known,
            reach=0.1 if len(known) else 1.0,
        )

    # Recording -------------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """One picture, as this visitor sees it: while a film is made, a second of it may take longer than one."""
        film = self._film
        if film is None:
            return
        width, height = FILM_SIZE
        try:
            film.add(self._client.get_render(height, width, timeout=5.0))
        except (RuntimeError, TimeoutError):  # the tab is closed, or hidden
            return
        if film.count >= FILM_SECONDS * FRAMES:
            self._save()

    def _start_or_save(self) -> None:
        if self._film is not None:
            return self._save()
        self._film = FilmFile(FRAMES)
        self._buttons.options = (NEW, f"stop and save {self._film.kind.upper()}")

    def _save(self) -> None:
        film, self._film = self._film, None
        self._buttons.options = (NEW, "record")
        if film is None:
            return
        data = film.finish()
        if data:
            self._client.send_file_download(f"{self.session.file.stem}.{film.kind}", data, save_immediately=True)
        if film.kind == "gif":
            self._client.add_notification("A GIF was saved", "For MP4: pip install 'pdvf[live]', which brings PyAV.")

    def close(self) -> None:
        """Ends the thread and the simulations."""
        self._stopped = True
        self._worker.join(timeout=5.0)

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._worker.is_alive()


def rounded(value: float) -> float:
    """To three digits, which a slider has room for."""
    return float(f"{value:.3g}")


class _Plane(NamedTuple):
    """Where points [k] are drawn."""

    origin: np.ndarray  # [k]
    axes: np.ndarray  # [2, k]

    @classmethod
    def of(cls, points: np.ndarray) -> _Plane:
        """The plane in which points [n, k] differ most."""
        origin = points.mean(axis=0)
        axes = np.linalg.svd(points - origin, full_matrices=True)[2][:2]
        return cls(origin, np.concatenate([axes, np.zeros((2 - len(axes), points.shape[1]))]))

    def at(self, points: np.ndarray) -> np.ndarray:
        """Points [.., 2] of points [.., k]."""
        return (points - self.origin) @ self.axes.T


def _phase(adapter: Adapter) -> str:
    """What the agent is about."""
    if isinstance(adapter, BeliefAdapter):
        return f"its belief has taken in {adapter.steps} steps"
    return "it probes" if estimate(adapter) is None else "it has adapted"


def _block(*parts: str) -> str:
    """Words and charts as the panel has them."""
    return f'<div style="padding:0.3em 0.7em;font-size:0.85em;line-height:1.55">{"".join(parts)}</div>'


def _titled(title: str, chart: str) -> str:
    return f'<div style="margin:0.5em 0 0.15em;opacity:0.75">{escape(title)}</div>{chart}'
