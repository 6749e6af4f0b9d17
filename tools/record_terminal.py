"""Records what a command shows on a terminal, as text.

`python tools/record_terminal.py FILE COMMAND...`, from the folder in which the command is to run.

The command gets a terminal of its own, so that it draws its bars. Seconds since its start stand before each line. A
line that is drawn anew in its place is kept three times a minute at most, and as it was left.
"""

from __future__ import annotations

import codecs
import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

COLUMNS, ROWS = 110, 40
EVERY = 20.0
"""Seconds between two states of a line that is drawn anew."""
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\].*?(?:\x07|\x1b\\)|[@-Z\\^_])", re.DOTALL)
UNFINISHED = re.compile(r"\x1b[^@-Z\\^_a-z]*$|\r$")
"""The end of a chunk that the next one goes on with."""


def lines(chunks: Iterable[tuple[float, str]], every: float = EVERY) -> Iterator[tuple[float, str]]:
    """Lines with their times, from text as it came with its times.

    A carriage return begins a line anew, which is all that a program of one bar needs.
    """
    held, shown, kept, begun = "", "", "", False
    now = last = 0.0
    for now, text in chunks:
        text = held + text
        unfinished = UNFINISHED.search(text)
        held = unfinished[0] if unfinished else ""
        text = ESCAPE.sub("", text.removesuffix(held)).replace("\r\n", "\n")
        for part in re.findall(r"[\r\n]|[^\r\n]+", text):
            if part == "\n":
                if shown != kept or not shown:
                    yield now, shown
                shown, kept, begun = "", "", False
            elif part == "\r":
                if shown not in ("", kept) and now - last >= every:
                    yield now, shown
                    kept, last = shown, now
                shown = ""
            else:
                last = last if begun else now
                begun = True
                shown += part
    if shown:
        yield now, shown


def run(command: list[str]) -> Iterator[tuple[float, str]]:
    """What a command writes to a terminal, piece by piece; ends with its exit status."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (ROWS, COLUMNS))
    start, decode, text = time.monotonic(), codecs.getincrementaldecoder("utf-8")("replace").decode, ""
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env={**os.environ, "TERM": "xterm"}) as child:
        os.close(its)
        while data := read(ours):
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
            text = decode(data)
            yield time.monotonic() - start, text
    os.close(ours)
    begin = "" if text.endswith("\n") else "\n"
    yield time.monotonic() - start, f"{begin}exit status {child.returncode}"


def read(terminal: int) -> bytes:
    """What has come; nothing where the other end is closed, of which Linux makes an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def main(words: list[str]) -> int:
    """Runs a command and writes its recording."""
    if len(words) < 2:
        print("usage: python tools/record_terminal.py FILE COMMAND...")
        return 2
    file, *command = words
    recorded = "".join(f"{f'{seconds:5.0f} s  {line}'.rstrip()}\n" for seconds, line in lines(run(command)))
    Path(file).write_text(f"$ {' '.join(command)}\n{recorded}", encoding="utf-8")
    print()
    return int(not recorded.endswith("exit status 0\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
