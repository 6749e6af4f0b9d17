"""`pdvf watch`: a page that shows a run while it trains, from its event stream alone.

Nothing of the folder is run or imported, and of its files only events.jsonl is read: it may be a stranger's, and the
run may be at work on another machine that shares the folder.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from pdvf.experiment.errors import RunError
from pdvf.experiment.events import EVENTS, Event, Follower
from pdvf.experiment.progress import SHOWN, Clock, duration, words
from pdvf.live.charts import AGENT, Line, line_chart
from pdvf.live.gate import Gate
from pdvf.paper.pipeline import PHASES
from pdvf.reports.page import TEMPLATES
from pdvf.reports.tables import Table

LARGEST = 1e15
"""Numbers beyond are no times and no stages."""
QUIET = 120.0
"""Seconds without an event after which the page says since when."""
RETURNS = "returns-"
"""Tasks of this prefix play a method."""


class Curve(NamedTuple):
    """A metric of a task over its stages."""

    task: str
    metric: str
    svg: Markup


class Watched:
    """What the events of a run say so far."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise RunError(f"{folder} is not there or no folder, expected the folder of a run: check the path")
        self.folder = folder
        self._follower = Follower(folder, whole=True)
        self._lock = threading.Lock()
        self._events: list[Event] = []

    def read(self) -> list[Event]:
        """All events that make sense."""
        with self._lock:
            self._events.extend(event for event in self._follower.new() if _is_sound(event))
            return list(self._events)

    def page(self) -> str:
        """The page as it is now."""
        events = self.read()
        latest = {event.task: event for event in events}
        names = [*PHASES, *(task for task in latest if task not in PHASES)]
        clock = Clock([(self.folder.name, name) for name in names if name in PHASES or name in latest])
        state = "nothing has happened yet"
        for event in events:
            known = event._replace(run=self.folder.name)  # the folder may have another name here
            state = words(known, clock) if known.kind in ("start", "stage") else state
        last = events[-1] if events else None
        if last is not None and last.kind in ("finish", "fail"):
            state = words(last)
        return TEMPLATES.get_template("watch.html").render(
            title=self.folder.resolve().name,
            state=state,
            quiet=_quiet(last),
            tasks=Table(("task", "state", "stages", "time"), [_row(event) for event in latest.values()]),
            returns=_returns(events),
            curves=list(_curves(events)),
            failed=[event for event in latest.values() if event.kind == "fail"],
            file=EVENTS,
        )


def _is_sound(event: Event) -> bool:
    """Whether the numbers can be what they say: the file may be anybody's."""
    times = all(-LARGEST < x < LARGEST for x in (event.time, event.seconds))
    return (times and 0 <= event.stage <= event.stages < LARGEST) or (times and event.kind == "fail")


def _quiet(last: Event | None) -> str:
    silence = 0.0 if last is None else time.time() - last.time
    return f"nothing new for {duration(silence)}" if silence > QUIET else ""


def _row(event: Event) -> list[str]:
    state = {"start": "begun", "stage": "at work", "finish": "done", "fail": "failed"}[event.kind]
    stages = f"{event.stage} of {event.stages}" if event.stages else ""
    return [event.task, state, stages, duration(event.seconds)]


def _returns(events: list[Event]) -> Table | None:
    """Mean returns of the methods that have played, the best first."""
    found: dict[str, Mapping[str, Any]] = {
        event.task.removeprefix(RETURNS): event.metrics
        for event in events
        if event.task.startswith(RETURNS) and _number(event.metrics.get("test")) is not None
    }
    ranked = sorted(found, key=lambda name: -float(found[name]["test"]))
    rows = [[name, *(_shown(_number(found[name].get(split))) for split in ("test", "train"))] for name in ranked]
    return Table(("method", "test return", "training return"), rows) if rows else None


def _curves(events: list[Event]) -> list[Curve]:
    """The first metric of `SHOWN` of each task that has two stages or more."""
    tasks: dict[str, list[Event]] = {}
    for event in events:
        if event.kind == "stage":
            tasks.setdefault(event.task, []).append(event)
    curves = []
    for task, stages in tasks.items():
        name = next((name for name in SHOWN if _number(stages[-1].metrics.get(name)) is not None), None)
        if name is None or len({event.stage for event in stages}) < 2:
            continue
        values = {event.stage: _number(event.metrics.get(name)) for event in stages}  # a stage made again counts once
        x, y = np.array(sorted(values), float), np.array([values[at] for at in sorted(values)], float)
        label = f"{name.replace('_', ' ')}, by stage"
        curves.append(Curve(task, label, Markup(line_chart([Line(x, y, AGENT, label)], height=120))))
    return curves


def _number(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST
    return float(value) if good and math.isfinite(value) else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def serve(folder: Path, host: str, port: int) -> Gate:
    """Serves the page of a run until the process ends."""
    watched = Watched(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """The page, whatever is asked for."""
            body = watched.page().encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: requests come every two seconds."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return Gate(host, port, server.server_address[1])
