"""A worker process that holds users' environments and steps them as its parent says (`families/env_pool.py`).

A user's environment may raise, exit, crash or never return. Here it cannot take the training along. Before every call
of the user's code the worker notes what it is about to do in memory that it shares with its parent, so that the parent
can say where it ended. Results are arrays of numbers: the parent never unpickles what the user's code has made.

This module does not import JAX. The user's file may.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pdvf.families import loading as targets

WAITING, LOADING, MAKE, RESET, STEP, RENDER = range(6)
FUNCTIONS = ("waiting", "loading", "make_env", "reset", "step", "render")
"""What the worker is at, as noted in shared memory."""
CALLS, POSITION, FUNCTION = range(3)
"""The shared memory: calls of the user's code so far, and the row and the function of the latest."""
SHARED_BYTES = 3 * 8
LARGEST_PICTURE = 1024
"""Pixels of a side."""
NOT_FINITE = "gave an observation of numbers that are not finite"


Context = dict[str, float]


class Start(NamedTuple):
    """How an environment gets to where an episode is."""

    context: Context | None  # the environment is to be made first
    seed: int
    past: np.ndarray  # [t, a] actions


class Problem(Exception):  # noqa: N818  it is a user's problem, not an error of ours
    """What an environment did wrong: the words before and after `in FUNCTION in context {...}`."""


class Slots:
    """Environments by number; `call` runs one command of the parent."""

    def __init__(self, make: Callable[[dict[str, float]], Any], shared: memoryview):
        self._make, self._shared = make, shared
        self._environments: dict[int, Any] = {}

    def call(self, command: str, *arguments: Any) -> Any:
        """The result of a command: step, or for each of some environments its spaces, its starts or its film."""
        if command == "step":
            return self._steps(*arguments)
        slots, *more = arguments
        answer = {"spaces": self._spaces, "starts": self._starts, "film": self._film}[command]
        return [answer(i, self._environment(i, slot, context), *more) for i, (slot, context) in enumerate(slots)]

    def _spaces(self, position: int, environment: Any) -> list[tuple[str, np.ndarray | None, np.ndarray | None]]:
        """The observation and the action space in words and, of a Box with one axis, its bounds."""
        import gymnasium

        described = []
        for name in ("observation_space", "action_space"):
            space = self._guarded(position, MAKE, getattr, environment, name)
            words, low, high = self._guarded(position, MAKE, str, space), None, None
            if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
                low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
            described.append((words, low, high))
        return described

    def _starts(self, position: int, environment: Any, seeds: int, size: int) -> tuple[np.ndarray, float]:
        """First observations [seeds, o], and seconds of one reset."""
        began = time.perf_counter()
        made = np.stack([self._reset(position, environment, seed, size) for seed in range(seeds)])
        return made.astype(np.float32), (time.perf_counter() - began) / seeds

    def _steps(
        self, size: int, slots: Sequence[int], actions: np.ndarray, fresh: dict[int, Start]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """One step in every slot: observations [n, o], rewards [n], ends [n], and seconds of one step."""
        count = len(slots)
        seen, reward = np.empty((count, size), np.float32), np.empty(count, np.float32)
        ended = np.empty(count, bool)
        calls, began, making = count, time.perf_counter(), 0.0
        for i, slot in enumerate(slots):
            start, at = fresh.get(i), time.perf_counter()
            environment = self._environment(i, slot, start.context if start is not None else None)
            if start is not None:
                making += time.perf_counter() - at
                self._reset(i, environment, start.seed, size)
                for earlier in start.past:
                    self._step(i, environment, earlier, size)
                calls += 1 + len(start.past)
            seen[i], reward[i], ended[i] = self._step(i, environment, actions[i], size)
        for i in np.flatnonzero(~np.isfinite(reward)):
            self._shared[POSITION] = int(i)
            raise Problem(f"gave a reward of {reward[i]}", ", expected a finite number")
        for i in np.flatnonzero(~np.isfinite(seen).all(axis=1)):
            self._shared[POSITION] = int(i)
            raise Problem(NOT_FINITE, f", expected {size} finite")
        return seen, reward, ended, (time.perf_counter() - began - making) / calls

    def _film(
        self, position: int, environment: Any, seed: int, actions: np.ndarray, shown: Sequence[int]
    ) -> np.ndarray | None:
        """Pictures [n, height, width, 3] of an episode after `shown` of its steps; None where no pictures are made."""
        if self._guarded(position, RENDER, getattr, environment, "render_mode", None) != "rgb_array":
            return None
        self._guarded(position, RESET, lambda: environment.reset(seed=seed))
        pictures = [self._picture(position, environment)] if 0 in shown else []
        for made, action in enumerate(actions, 1):
            self._guarded(position, STEP, environment.step, np.array(action))
            if made in shown:
                pictures.append(self._picture(position, environment))
        if len({picture.shape for picture in pictures}) != 1:
            raise Problem("gave pictures of several sizes", ", expected all of one size")
        return np.stack(pictures)

    def _picture(self, position: int, environment: Any) -> np.ndarray:
        picture = self._guarded(position, RENDER, environment.render)
        height_and_width = picture.shape[:2] if isinstance(picture, np.ndarray) and picture.ndim == 3 else (0,)
        if picture is None or min(height_and_width) < 1 or max(height_and_width) > LARGEST_PICTURE:
            raise Problem(f"gave a picture that is {_kind(picture)}", ", expected an array [height, width, 3]")
        if picture.dtype != np.uint8 or picture.shape[2] != 3:
            raise Problem(f"gave a picture of {picture.dtype}", ", expected an array [height, width, 3] of uint8")
        return picture

    def _environment(self, position: int, slot: int, context: Context | None) -> Any:
        """The environment in a slot; where a context is given, it is made first."""
        if context is None:
            return self._environments[slot]
        environment = self._environments[slot] = self._guarded(position, MAKE, self._make, context)
        if not all(callable(getattr(type(environment), name, None)) for name in ("reset", "step")):
            raise Problem(f"is {_kind(environment)}", ", expected a gymnasium.Env")
        return environment

    def _reset(self, position: int, environment: Any, seed: int, size: int) -> np.ndarray:
        made = self._guarded(position, RESET, lambda: environment.reset(seed=seed))
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise Problem(f"returned {_kind(made)}", ", expected (observation, info)")
        numbers = _numbers(made[0], size)
        if not np.isfinite(numbers).all():
            raise Problem(NOT_FINITE, f", expected {size} finite")
        return numbers

    def _step(self, position: int, environment: Any, action: np.ndarray, size: int) -> tuple[np.ndarray, Any, Any]:
        # A copy: an environment may write into what it is given, or keep it.
        made = self._guarded(position, STEP, lambda: environment.step(np.array(action)))
        if not isinstance(made, tuple | list) or len(made) != 5:
            expected = "(observation, reward, terminated, truncated, info)"
            raise Problem(f"returned {_kind(made)}", f", expected {expected}")
        reward, terminated = made[1], made[2]
        if type(reward) is not float:
            reward = _scalar("a reward", reward, "fiub", "a number")
        if type(terminated) is not bool:
            terminated = bool(_scalar("terminated", terminated, "iub", "a bool"))
        return _numbers(made[0], size), reward, terminated

    def _guarded(self, position: int, function: int, call: Callable[..., Any], *arguments: Any) -> Any:
        """What the user's code returns; anything it raises, exits included, is a problem of it."""
        shared = self._shared
        shared[POSITION], shared[FUNCTION] = position, function
        shared[CALLS] += 1
        try:
            return call(*arguments)
        except BaseException as error:
            raise Problem(f"raised {type(error).__name__}", said(error)) from None


def said(error: BaseException) -> str:
    """The message of an error on one line, with the place it was raised at."""
    try:
        words = " ".join(str(error).split())
    except BaseException:  # a user's __str__
        words = ""
    words = words if len(words) <= 400 else words[:400] + " ..."
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return (f": {words}" if words else "") + place


def _numbers(observation: Any, size: int) -> np.ndarray:
    """An observation [o] as numbers."""
    numbers = _array("an observation", observation, "fiub", f"{size} numbers")
    if numbers.size != size:
        raise Problem(f"gave an observation of {numbers.size} numbers", f", expected {size} finite")
    return numbers.reshape(-1)


def _scalar(what: str, value: Any, kinds: str, expected: str) -> Any:
    number = _array(what, value, kinds, expected)
    if number.size != 1:
        raise Problem(f"gave {what} that is {_kind(value)}", f", expected {expected}")
    return number.reshape(())[()]


def _array(what: str, value: Any, kinds: str, expected: str) -> np.ndarray:
    """A value as an array of one of these kinds of numbers."""
    given = _kind(value)
    try:
        array = np.asarray(value)
    except BaseException as error:
        raise Problem(f"gave {what} that is {given}", f", expected {expected}") from error
    if array.dtype.kind not in kinds:
        given = f"an array of {array.dtype}" if isinstance(value, np.ndarray) else given
        raise Problem(f"gave {what} that is {given}", f", expected {expected}")
    return array


def _kind(value: Any) -> str:
    """What something is, without asking it: the user's `repr` might do anything."""
    if value is None:
        return "None"
    if type(value) in (tuple, list):
        return f"a {type(value).__name__} of {len(value)}"
    if type(value) is np.ndarray:
        return f"an array of shape {value.shape}"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def end_with_parent(lifeline: int) -> None:
    """Has the kernel kill this process and those it starts as soon as the parent is gone, also amid a user's C code.

    The parent holds the other end of this socket and sends nothing: the first event on it is its end.
    """
    import fcntl  # Windows has none

    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    if hasattr(fcntl, "F_SETSIG"):  # Linux; elsewhere it is SIGIO, which ends a process too
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)  # type: ignore[attr-defined]
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it has ended already
        os._exit(0)


def find_make(origin: targets.Origin) -> Callable[[dict[str, float]], Any]:
    """What makes environments of a family that a target of the command line names."""
    return targets.find_again(origin).make


def main(connection_fd: int, lifeline: int, shared_fd: int) -> None:
    """Serves the parent until it closes the connection."""
    end_with_parent(lifeline)
    os.dup2(2, 1)  # what users print must not mix with what the program itself prints
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    connection, process = Connection(connection_fd), os.getpid()
    shared = memoryview(mmap.mmap(shared_fd, SHARED_BYTES)).cast("Q")

    def answer(result: tuple[bool, Any]) -> None:
        with contextlib.suppress(Exception):  # it may be closed
            sys.stdout.flush()
        if os.getpid() != process:  # a user's code has forked, and the child came back here
            os._exit(0)
        if result[0]:  # else the parent wants to know where it was
            shared[FUNCTION] = WAITING
        try:
            connection.send_bytes(pickle.dumps(result, 5))
        except OSError:  # closed by the user's code, or the parent is gone
            os._exit(1)

    try:
        find = pickle.loads(connection.recv_bytes())
        slots = Slots(find(), shared)
    except EOFError:
        return
    except BaseException as error:
        answer((False, (f"raised {type(error).__name__}", said(error))))
        return
    answer((True, None))
    while True:
        try:
            asked = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        except OSError:
            os._exit(1)
        try:
            result = True, slots.call(*asked)
        except Problem as problem:
            result = False, problem.args
        answer(result)
