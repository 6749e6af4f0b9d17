"""Processes of pdvf: the cores they may use, and how they end, at once on Ctrl-C and with whoever started them.

A run folder is whole after any kill, so a process may end wherever it is. It ends without Python's finalisation, which
waits for, or crashes on, threads that are inside XLA's compiler or a simulator.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

from pdvf.core.validation import ConfigError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
LINE = "pdvf: stopped; the same command goes on from the last finished stage"
SHOW_CURSOR = "\x1b[?25h"


def cores() -> int:
    """Cores this process may use; all of the machine where the system does not tell (macOS, Windows)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def require_posix(what: str) -> None:
    """Raises on Windows, which has neither `fcntl` nor sockets that a new process is born with."""
    if os.name == "nt":
        raise ConfigError(f"{what} on Windows, expected Linux or macOS: use WSL; exported models act anywhere")


def exit_on_interrupt(line: str = LINE) -> None:
    """From now on Ctrl-C ends this process with one line on standard error and status 130.

    Python runs signal handlers between two instructions of the main thread, which may be inside XLA for minutes. So the
    handler does nothing; a thread of its own reads the signal's number from a pipe and ends the process.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def wait() -> None:
        while signal.SIGINT not in os.read(reading, 64):
            pass
        leave(INTERRUPTED, line)

    _thread(wait)


def ignore_interrupts() -> None:
    """From now on Ctrl-C does nothing: the command is done, and Python's own end would let the signal kill it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def exit_with_parent() -> None:
    """From now on this process ends when the one that holds the other end of its standard input does."""

    def wait() -> None:
        while os.read(0, 64):
            pass
        leave(1, "pdvf: the process that started this one has ended")

    _thread(wait)


def is_alive(pid: int) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def leave(status: int, line: str) -> NoReturn:
    """Ends the process now, with a line on standard error."""
    terminal = os.isatty(2)
    with contextlib.suppress(OSError):
        # On a terminal, a bar may have hidden the cursor and stand in the line.
        os.write(2, ((SHOW_CURSOR + "\r\n" if terminal else "") + line + "\n").encode())
    os._exit(status)


def _thread(function: Callable[[], None]) -> None:
    threading.Thread(target=function, daemon=True).start()
