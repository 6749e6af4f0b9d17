"""How processes end: at once on Ctrl-C, wherever they are, and with the process that started them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from pdvf.core.processes import INTERRUPTED, LINE
from pdvf.experiment.store import RunStore

BUSY = """
import hashlib
print("busy", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000_000)  # minutes in C, without a look at signals, as XLA's compiler
"""


def start(words: list[str], **named) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "pdvf", *words]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **named)


def test_ctrl_c_ends_a_command_whose_main_thread_is_busy_in_c(tmp_path):
    (tmp_path / "busy.py").write_text(BUSY, encoding="utf-8")
    with start(["run", f"{tmp_path / 'busy.py'}:family", "--out", str(tmp_path / "run")]) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "busy\n"
        sent = time.monotonic()
        child.send_signal(signal.SIGINT)
        try:
            assert child.wait(5) == INTERRUPTED
        finally:
            child.kill()
        assert time.monotonic() - sent < 5
        assert child.stderr.read() == LINE + "\n"


def test_ctrl_c_while_python_imports(tmp_path):
    with start(["run", "spaceship", "--preset", "smoke", "--out", str(tmp_path / "run")]) as child:
        assert child.stderr is not None
        maps = Path(f"/proc/{child.pid}/maps")
        wait_for(lambda: "numpy" in maps.read_text())
        child.send_signal(signal.SIGINT)
        assert child.wait(5) == INTERRUPTED
        assert child.stderr.read() == LINE + "\n"


def test_workers_end_with_the_command_that_started_them(tmp_path):
    words = ["reproduce", "spaceship", "--preset", "smoke", "--workers", "2", "--methods", "nn", "--out", str(tmp_path)]
    with start(words) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "train: begins" in line:
                break
        workers = children(child.pid)
        assert workers
        log = tmp_path / "spaceship" / "logs" / "train.log"
        wait_for(lambda: "train: begins" in log.read_text())
        child.kill()
        child.wait()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 5)
    with RunStore.open(tmp_path / "spaceship").lock():
        pass  # nobody holds it any more


def test_a_lock_is_waited_for_while_processes_of_a_killed_command_end(tmp_path):
    store = RunStore.create(tmp_path / "run", {"family": "spaceship"}, "test")
    # A process that is gone wrote its number; one that it started still has the lock, for half a second.
    script = (
        "import os, subprocess, sys\n"
        "from pdvf.experiment.store import RunStore\n"
        "with RunStore.open(sys.argv[1]).lock() as lock:\n"
        "    subprocess.Popen(['sleep', '0.5'], pass_fds=[lock])\n"
        "    os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(store.folder)], check=True)
    began = time.monotonic()
    with store.lock():
        assert 0.1 < time.monotonic() - began < 5


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


def wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_output_is_lost_at_the_end():
    done = subprocess.run([sys.executable, "-m", "pdvf", "list"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("families:")
    assert done.stderr == ""


def test_an_interrupt_after_the_work_is_done_changes_nothing():
    code = """
import os, sys, time
from pdvf.core.processes import exit_on_interrupt, ignore_interrupts

class Slow:  # goes when Python has already taken its signal handlers away
    def __del__(self, write=os.write, sleep=time.sleep):
        write(1, b"ending")
        sleep(1.0)

exit_on_interrupt()
kept = Slow()
ignore_interrupts()
sys.exit(0)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(6) == b"ending"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == b""
