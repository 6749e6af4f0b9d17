"""`pdvf watch`: a page that shows a run while it trains, from its event stream alone.

Nothing of the folder is run or imported, and of its files only events.jsonl is read: it may be a stranger's, and the
run may be at work on another machine that shares the folder.
"""

from __future__ import annotations

import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from pdvf.experiment.errors import RunError
from pdvf.experiment.events import EVENTS, KINDS, Event, Follower
from pdvf.experiment.progress import SHOWN, Clock, duration, words
from pdvf.live.charts import AGENT, Line, line_chart
from pdvf.live.gate import Answer, Door
from pdvf.paper.pipeline import PHASES
from pdvf.reports.page import TEMPLATES
from pdvf.reports.tables import Table

LARGEST = 1e15
"""Numbers beyond are no times and no stages."""
QUIET = 120.0
"""Seconds without an event after which the page says since when."""
MOST_EVENTS, MOST_TASKS, MOST_LETTERS = 50_000, 500, 2000
"""What the page keeps, and letters of a name or an error: a file may go on for ever."""
METRICS = (*SHOWN, "steps_per_second", "test", "train")
PATIENCE = 10.0
"""Seconds in which a request must have come."""
RETURNS = "returns-"
"""Tasks of this prefix play a method."""


class Curve(NamedTuple):
    """A metric of a task over its stages."""

    task: str
    svg: Markup


class RunPage:
    """What the events of a run say so far."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise RunError(f"{folder} is not there or no folder, expected the folder of a run: check the path")
        self.folder = folder
        self._follower = Follower(folder, whole=True)
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._tasks: set[str] = set()

    def read(self) -> list[Event]:
        """All events that make sense."""
        with self._lock:
            for event in self._follower.new():
                room = len(self._tasks) < MOST_TASKS or event.task in self._tasks
                if _is_sound(event) and room and len(self._events) < MOST_EVENTS:
                    self._tasks.add(event.task)
                    given = {name: event.metrics[name] for name in METRICS if name in event.metrics}
                    metrics = {name: float(x) for name, x in given.items() if _is_number(x)}
                    error = event.error[:MOST_LETTERS]
                    self._events.append(event._replace(run=self.folder.name, metrics=metrics, error=error))
            return list(self._events)

    def page(self) -> str:
        """The page as it is now."""
        events = self.read()
        latest = {event.task: event for event in events}
        clock = Clock([(self.folder.name, name) for name in dict.fromkeys([*PHASES, *latest])])
        for event in latest.values():
            clock.left(event)
        state = words(events[-1], clock) if events else "nothing has happened yet"
        return TEMPLATES.get_template("watch.html").render(
            title=self.folder.resolve().name,
            state=state,
            quiet=_quiet(events),
            tasks=Table(("task", "state", "stages", "time"), [_row(event) for event in latest.values()]),
            returns=_returns(events),
            curves=list(_curves(events)),
            failed=[event for event in latest.values() if event.kind == "fail"],
            file=EVENTS,
        )


def _is_sound(event: Event) -> bool:
    """Whether the numbers can be what they say: the file may be anybody's."""
    if not (_is_number(event.time) and _is_number(event.seconds)) or len(event.task) > MOST_LETTERS:
        return False
    return event.kind in KINDS and 0 <= event.stage <= max(event.stages, 0) < LARGEST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _quiet(events: list[Event]) -> str:
    silence = time.time() - events[-1].time if events else 0.0
    return f"nothing new for {duration(silence)}" if silence > QUIET else ""


def _row(event: Event) -> list[str]:
    state = {"start": "begun", "stage": "at work", "finish": "done", "fail": "failed"}[event.kind]
    stages = f"{event.stage} of {event.stages}" if event.stages else ""
    return [event.task, state, stages, duration(event.seconds)]


def _returns(events: list[Event]) -> Table | None:
    """Mean returns of the methods that have played, the best first."""
    played = (event for event in events if event.task.startswith(RETURNS) and "test" in event.metrics)
    found = {event.task.removeprefix(RETURNS): event.metrics for event in played}
    rows = [
        [name, *(f"{metrics[split]:.4g}" if split in metrics else "" for split in ("test", "train"))]
        for name, metrics in sorted(found.items(), key=lambda item: -item[1]["test"])
    ]
    return Table(("method", "test return", "training return"), rows) if rows else None


def _curves(events: list[Event]) -> list[Curve]:
    """The first metric of `SHOWN` of each task that has two stages or more."""
    tasks: dict[str, dict[int, Event]] = {}
    for event in events:
        if event.kind == "stage":
            tasks.setdefault(event.task, {})[event.stage] = event  # a stage that is made again counts once
    curves = []
    for task, stages in tasks.items():
        name = next((name for name in SHOWN if name in stages[max(stages)].metrics), "")
        x = [at for at in sorted(stages) if name in stages[at].metrics]
        if len(x) > 1:
            y = np.array([stages[at].metrics[name] for at in x])
            line = Line(np.array(x, float), y, AGENT, f"{name.replace('_', ' ')}, by stage")
            curves.append(Curve(task, Markup(line_chart([line], height=120))))
    return curves


def serve(folder: Path, host: str, port: int) -> Door:
    """Serves the page of a run until the process ends."""
    watched, door = RunPage(folder), Door(host, port)

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            """The page, whatever is asked for."""
            made = door.refuse(self.path, self.headers)
            if made is None:
                made = Answer(HTTPStatus.OK, watched.page(), {"Content-Type": "text/html; charset=utf-8"})
            self.send_response(made.status)
            for name, value in made.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(made.text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: requests come every two seconds."""

    server = ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)  # the door is bound already
    server.socket.close()
    server.socket = door.socket
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return door
