"""What live pages are made of: the door, charts, films, and a run that is watched."""

from __future__ import annotations

import io
import json
import re
import socket
import tracemalloc
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pdvf.cli.main import main
from pdvf.core.validation import ConfigError
from pdvf.engines import film_file
from pdvf.experiment.events import Follower
from pdvf.live import charts, watch
from pdvf.live.gate import COOKIE, Door
from pdvf.live.watch import RunPage

# The door


def ask(url: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_on_loopback_this_machine_comes_in_and_no_other_website(tmp_path):
    url = watch.serve(tmp_path, "127.0.0.1", 0).url
    assert "token" not in url
    for code, page in (ask(url), ask(url, Origin=url.rstrip("/"))):
        assert code == 200
        assert "nothing has happened yet" in page
    assert ask(url, Origin="http://evil.example")[0] == 403
    assert ask(url, Origin="http://[")[0] == 400
    assert ask(url, Host="evil.example")[0] == 403


def test_elsewhere_a_token_is_asked_for_and_kept_in_a_cookie(tmp_path):
    door = watch.serve(tmp_path, "0.0.0.0", 0)
    address = re.sub(r"//[^:]+", "//127.0.0.1", door.url)
    bare = address.split("?")[0]
    code, words = ask(bare)
    assert code == 403
    assert "asks for a token" in words
    assert ask(f"{bare}?token=wrong")[0] == 403
    assert ask(bare, Cookie=f"{COOKIE}=wrong")[0] == 403
    assert ask(bare, Cookie=f"{COOKIE}={door.token}")[0] == 200
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(address, timeout=10) as answer:
        assert b"nothing has happened yet" in answer.read()
        assert "token" not in answer.url  # it does not stay in the address


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:80", None, None),
        ("[::1]:80", "http://[::1]:80", None),
        (None, None, 403),
        ("localhost", "http://[", 400),
        ("localhost", "null", 403),
        ("localhost, evil.example", None, 403),
    ],
)
def test_odd_requests(host, origin, status):
    door, headers = Door("127.0.0.1", 0), Message()
    for name, value in (("Host", host), ("Origin", origin)):
        if value is not None:
            headers[name] = value
    answer = door.refuse("/", headers)
    assert (answer and answer.status) == status
    headers["Host"] = "evil.example"  # a second one
    assert door.refuse("/", headers) is not None
    door.socket.close()


def test_an_agents_page_is_behind_the_same_door(capfd):
    """Its files and its websocket; and what is no request ends without a word on the terminal."""
    viser = pytest.importorskip("viser")
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    from pdvf.live.server import Server

    door = Door("0.0.0.0", 0)
    server, port = Server(door, "a page"), door.socket.getsockname()[1]
    bare, cookie = f"http://127.0.0.1:{port}/", {"Cookie": f"{COOKIE}={door.token}"}
    with socket.create_connection(("127.0.0.1", port)) as knock:
        knock.sendall(b"nonsense\r\n\r\n")
        assert knock.recv(100) == b""
    code, words = ask(bare)
    assert code == 403
    assert "asks for a token" in words
    assert ask(bare, Origin="http://evil.example", **cookie)[0] == 403
    assert ask(bare, **cookie)[0] == 200
    protocols: Any = [f"viser-v{viser.__version__}"]
    with pytest.raises(InvalidStatus):
        connect(f"ws://127.0.0.1:{port}/", subprotocols=protocols)
    with connect(f"ws://127.0.0.1:{port}/", subprotocols=protocols, additional_headers=cookie) as opened:
        assert opened.recv(timeout=10)
    server.stop()
    assert capfd.readouterr().err == ""


def test_a_viser_that_serves_in_another_way_is_refused(monkeypatch):
    viser = pytest.importorskip("viser")
    from pdvf.live.server import Server

    monkeypatch.setattr(viser.ViserServer, "__init__", lambda self, **options: None)
    monkeypatch.setattr(viser.ViserServer, "stop", lambda self: None)
    door = Door("127.0.0.1", 0)
    with pytest.raises(ConfigError, match=r"expected viser 1\.1"):
        Server(door, "a page")
    door.socket.close()


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [("192.0.2.1", 0, "an address of this machine and a free port"), ("127.0.0.1", 99999, "a number from 0 to 65535")],
)
def test_an_address_that_is_none(host, port, expected):
    with pytest.raises(ConfigError, match=expected):
        Door(host, port)


# Charts


def test_words_in_charts_are_escaped():
    line = charts.Line(np.arange(3.0), np.arange(3.0), charts.AGENT, "<script>")
    drawn = charts.line_chart([line], level=1.0, label="<b>")
    assert "<script>" not in drawn
    assert "<b>" not in drawn
    assert "&lt;script&gt;" in drawn


def test_lines_leave_out_what_is_not_finite_and_an_empty_one_says_so():
    line = charts.Line(np.arange(4.0), np.array([0.0, np.nan, np.inf, 2.0]), charts.AGENT, "")
    points = re.search(r'points="([^"]+)"', charts.line_chart([line]))
    assert points is not None
    assert len(points[1].split()) == 2
    assert "nothing yet" in charts.line_chart([])


def test_the_ellipse_has_the_axes_of_two_standard_deviations():
    """Variances 4 along (1, 1) and 1 across: half axes 4 and 2, turned by 45 degrees, up in the drawing."""
    covariance = np.array([[2.5, 1.5], [1.5, 2.5]])
    drawn = charts.belief_chart(charts.Belief(np.zeros(2), covariance, None, np.zeros((0, 2)), reach=10.0), height=212)
    wide, tall, turn = map(float, re.findall(r'rx="([\d.]+)" ry="([\d.]+)".*rotate\((-?[\d.]+)\)', drawn)[0])
    assert (wide, tall) == (pytest.approx(40), pytest.approx(20))
    assert turn % 180 == pytest.approx(135)


# Films


def test_a_film_is_mp4_where_pyav_is_and_a_gif_elsewhere(monkeypatch):
    pictures = np.random.default_rng(0).integers(0, 255, (6, 17, 33, 3), np.uint8)
    monkeypatch.setattr(film_file.importlib.util, "find_spec", lambda name: None)
    made = film_file.FilmFile(30)
    for picture in pictures:
        made.add(picture)
    assert made.kind == "gif"
    assert Image.open(io.BytesIO(made.finish())).size == (32, 16)
    monkeypatch.undo()
    av = pytest.importorskip("av")
    made = film_file.FilmFile(30)
    for picture in pictures:
        made.add(picture)
    assert made.kind == "mp4"
    with av.open(io.BytesIO(made.finish())) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert [frame.shape for frame in frames] == [(16, 32, 3)] * 6
    assert film_file.FilmFile(30).finish() == b""


# A run that is watched


def event(task: str, kind: str, stage: int = 0, stages: int = 0, **more) -> str:
    data = {
        "time": 0.0,
        "run": "r",
        "task": task,
        "kind": kind,
        "stage": stage,
        "stages": stages,
        "seconds": 2.0,
    }
    return json.dumps({**data, "metrics": {}, "error": "", **more}) + "\n"


def test_a_run_is_watched_as_its_events_come(tmp_path):
    watched = RunPage(tmp_path)
    assert "nothing has happened yet" in watched.page()
    file = tmp_path / "events.jsonl"
    file.write_text(
        event("train", "start", 0, 4)
        + event("train", "stage", 1, 4, metrics={"train_return": 1.0})
        + event("train", "stage", 2, 4, metrics={"train_return": 2.0})
    )
    page = watched.page()
    assert "train: stage 2 of 4, train return 2, " in page
    assert " left" in page
    assert page.count("<polyline") == 1
    with file.open("a") as opened:
        opened.write(event("returns-pd-vf", "stage", 1, 1, metrics={"test": 0.75, "train": 0.5}))
        opened.write(event("returns-pd-vf", "finish", 1, 1))
        opened.write(event("embed", "fail", error="the disk is full"))
    page = watched.page()
    assert "0.75" in page
    assert "embed failed: the disk is full" in page


def test_a_strangers_events_are_words_and_numbers_and_no_more(tmp_path):
    nasty = "<script>alert(1)</script>"
    (tmp_path / "config.json").write_text("import os")
    (tmp_path / "events.jsonl").write_text(
        event(nasty, "start", 0, 3)
        + event(nasty, "stage", 1, 3, metrics={"train_return": nasty, "loss": 10**400})
        + event(nasty, "stage", 2, 3, metrics={"train_return": True, "loss": float("nan")})
        + event("train", "stage", 5, 3)
        + event("train", "stage", 1, 3, seconds=float("inf"))
        + event("train", "stage", 10**400, 10**400)
        + event("returns-x", "stage", 1, 1, metrics={"test": nasty})
        + event("x", "fail", error=nasty)
        + "no event\n{}\n[[[\n"
    )
    page = RunPage(tmp_path).page()
    assert nasty not in page
    assert "&lt;script&gt;" in page
    assert "<polyline" not in page


def test_a_file_of_events_that_goes_on_for_ever(tmp_path, monkeypatch):
    file = tmp_path / "events.jsonl"
    file.write_text("x\r" * 5 + "\n" + event("train", "start", 0, 3))
    watched = RunPage(tmp_path)
    assert [len(watched.read()) for _ in range(3)] == [1, 1, 1]  # each once
    with file.open("a") as opened:
        opened.truncate(2**33)  # a hole of eight gigabytes without an end of line
    follower = Follower(tmp_path, whole=True)
    tracemalloc.start()
    assert [found.task for _ in range(2) for found in follower.new()] == ["train"]
    assert tracemalloc.get_traced_memory()[1] < 5 * 2**24
    tracemalloc.stop()
    monkeypatch.setattr(watch, "MOST_EVENTS", 40)
    monkeypatch.setattr(watch, "MOST_TASKS", 5)
    lines = [event(f"t{i % 20}", "stage", 1, 3, error="e" * 9000, metrics={"m" * i: 1.0}) for i in range(200)]
    file.write_text("".join(lines) + event("n" * 9000, "start"))
    kept = RunPage(tmp_path).read()
    assert len(kept) == 40
    assert {each.task for each in kept} == {f"t{i}" for i in range(5)}
    assert not any(each.metrics for each in kept)
    assert max(len(each.error) for each in kept) == watch.MOST_LETTERS


def test_a_folder_that_is_not_there(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "nothing")]) == 2
    assert "expected the folder of a run" in capsys.readouterr().err


def test_without_viser_the_line_says_what_to_install(monkeypatch, capsys):
    import pdvf.families.mujoco

    monkeypatch.setattr(pdvf.families.mujoco.importlib.util, "find_spec", lambda name: None)
    assert main(["play", "spaceship"]) == 2
    said = capsys.readouterr().err
    assert "pip install 'pdvf[live]'" in said
    assert "--table" in said
