"""A real browser at `pdvf play`: Chromium drives the page of the ant in a wind."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

pytest.importorskip("viser", reason="the live page needs viser: pip install 'pdvf[live]'")

from browser import CHROMIUM, Browser, wait_for

from pdvf.deploy.pretrained import find, load
from pdvf.live.page import FRAMES, Page
from pdvf.live.session import measure_truth

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore:Queued a .* on a closed connection"),
]


WAIT = 120.0
"""Seconds: Chromium draws without a GPU, perhaps beside other tests."""


@pytest.fixture(scope="module")
def page():
    file = find("ant-wind")
    page = Page(load(file)[1], file, "127.0.0.1", 0)
    yield page
    page.stop()


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


def dot(tab) -> tuple[float, float] | None:
    """Where the chart has the agent's estimate."""
    found = tab.evaluate("(e => e && [e.getAttribute('cx'), e.getAttribute('cy')])(document.querySelector('.belief'))")
    return None if found is None else tuple(map(float, found))


def step(tab) -> int:
    found = re.search(r"step (\d+) of", tab.text())
    return int(found[1]) if found else -1


def slide(tab, index: int, share: float) -> None:
    """Presses on a slider's track, so far from its left end."""
    track = tab.box(".mantine-Slider-trackContainer", index)
    tab.press(track["x"] + share * track["width"], track["y"] + track["height"] / 2)


def test_the_wind_turns_and_what_the_agent_believes_turns_too(page, browser, tmp_path):
    tab = browser.open(page.url, 900, 600)
    wait_for(lambda: dot(tab) is not None, WAIT)
    text = tab.text()
    assert "wind direction" in text
    assert "wind strength" in text
    assert "does not adapt" in text  # the ghost's label
    (session,) = (t.session for t in page.tabs.values())
    wait_for(lambda: step(tab) > 5, WAIT)
    before, hidden, adapter = dot(tab), session.context[0], session.agent.adapter
    slide(tab, 0, 0.5)
    wait_for(lambda: session.context[0] != hidden and adapter.steps <= 64, WAIT)
    beliefs = []
    wait_for(lambda: beliefs.append((adapter.steps, adapter.mean.copy())) or adapter.steps > 64, WAIT)
    assert session.context[0] == pytest.approx(np.pi, abs=0.2)  # against the ant
    truth = measure_truth(session.family, session.file, session.context)
    assert any(np.linalg.norm(mean - truth) < 0.3 for steps, mean in beliefs if steps <= 64)
    wait_for(lambda: dot(tab) not in (None, before), WAIT)
    wait_for(lambda: step(tab) > 150, WAIT)
    tab.screenshot(tmp_path / "ant-wind.png")
    wait_for(lambda: len(session.finished) > 1, 2 * WAIT)
    assert session.finished[1].agent > session.finished[1].ghost  # a whole episode against the wind
    tab.close()
    wait_for(lambda: not page.tabs, WAIT)


def test_two_tabs_have_simulations_of_their_own_and_a_closed_one_is_freed(page, browser):
    first, second = browser.open(page.url, 500, 400), browser.open(page.url, 500, 400)
    wait_for(lambda: len(page.tabs) == 2, WAIT)
    one, two = page.tabs.values()
    wait_for(lambda: one.session.agent.steps > 3 and two.session.agent.steps > 3, WAIT)
    one.session.set_context(np.array([1.0, 2.0]))
    wait_for(lambda: np.allclose(one.session.context, [1.0, 2.0]), WAIT)
    assert not np.allclose(two.session.context, [1.0, 2.0])
    first.close()
    wait_for(lambda: len(page.tabs) == 1, WAIT)
    wait_for(lambda: one.alive + two.alive == 1, WAIT)
    second.close()
    wait_for(lambda: not page.tabs and not (one.alive or two.alive), WAIT)


def test_thirty_frames_a_second(page, browser):
    tab = browser.open(page.url, 500, 400)
    (live,) = wait_for(lambda: page.tabs.values() if page.tabs else None, WAIT)
    wait_for(lambda: live.frames > 3 * FRAMES, WAIT)
    frames, start, busy = live.frames, time.monotonic(), time.process_time()
    time.sleep(5)
    made = live.frames - frames
    ratio = made / (time.monotonic() - start) / FRAMES
    each = (time.process_time() - busy) / made
    print(f"{ratio:.2f} of {FRAMES} frames a second; {1e3 * each:.1f} ms of a core each")
    assert each < 1 / FRAMES  # a core's time: how many come about depends on who else is at work, Chromium above all
    tab.close()
    wait_for(lambda: not page.tabs, WAIT)


def test_a_film_is_saved(page, browser, tmp_path):
    tab = browser.open(page.url, 500, 400)
    (live,) = wait_for(lambda: page.tabs.values() if page.tabs else None, WAIT)
    wait_for(lambda: "record" in tab.text(), WAIT)
    tab.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    click = "[...document.querySelectorAll('button')].find(b => b.innerText.includes('{}')).click()"
    tab.evaluate(click.format("record"))
    wait_for(lambda: "stop and save" in tab.text(), WAIT)
    start = live.frames
    wait_for(lambda: live.frames > start + 5, WAIT)
    tab.evaluate(click.format("stop and save"))
    (film,) = wait_for(lambda: list(tmp_path.glob("ant-wind.*")), WAIT)
    wait_for(lambda: film.with_suffix(".mp4").is_file(), WAIT)
    assert film.with_suffix(".mp4").stat().st_size > 1000
    tab.close()
    wait_for(lambda: not page.tabs, WAIT)
