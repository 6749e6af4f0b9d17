"""What a run was made with: versions, device, commit."""

from __future__ import annotations

import contextlib
import functools
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

import pdvf
import pdvf.config
from pdvf.core import devices
from pdvf.experiment.files import read_json
from pdvf.experiment.node import package_version
from pdvf.experiment.remote import pulled

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy")


def describe_environment(command: str) -> dict[str, Any]:
    """Everything outside the configuration that may bear on the result."""
    return {
        "command": command,
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device(),
        "commit": commit(),
        "created": now(),
    }


@functools.cache
def versions() -> dict[str, str | None]:
    """Versions of the packages that decide the bits."""
    return {"pdvf": pdvf.__version__} | {name: package_version(name) for name in PACKAGES}


def device() -> dict[str, Any]:
    """Kind and number of the devices that JAX computes on; other ones give other bits."""
    first, *others = jax.devices()
    found = {"platform": first.platform, "kind": first.device_kind, "count": 1 + len(others)}
    return found | ({"processor": processor()} if found["platform"] == "cpu" else {})


@functools.cache
def processor() -> str:
    """The CPU's model, where the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def recorded_cores(run: Path) -> int | None:
    """How many devices a run was begun with, if it was on a CPU."""
    noted = _noted(run).get("device")
    count = noted.get("count") if isinstance(noted, dict) and noted.get("platform") == "cpu" else None
    return count if isinstance(count, int) and 1 <= count <= 1024 else None


def use_recorded_cores(place: str | Path) -> Path:
    """Computes on as many devices as a run was begun with, a new one on every core; returns the run's folder here."""
    folder, _ = pulled(place, lambda artefact: False)
    devices.use_all_cores(recorded_cores(folder))
    return folder


def changed_since(run: Path) -> str | None:
    """What is not as it was when a run was begun, in words, if it bears on the bits; None if nothing is."""
    noted, now = _noted(run), versions() | device()
    parts = [part for part in (noted.get("versions"), noted.get("device")) if isinstance(part, dict)]
    then = {name: value for part in parts for name, value in part.items()}
    changes = [f"{name} {then[name]} then, {now[name]} now" for name in now if then.get(name, now[name]) != now[name]]
    return "; ".join(changes) or None


def _noted(run: Path) -> dict[str, Any]:
    """What `describe_environment` said when a run was begun; nothing where the file is gone."""
    file = run / "environment.json"
    return read_json(file, "delete it") if file.is_file() else {}


def commit() -> str | None:
    """Commit of the checkout this package is in, with `-dirty` if it was changed since; None outside one.

    A package that is merely installed below somebody's checkout is not tracked there, and has no commit.
    """
    source = Path(pdvf.config.__file__).resolve()
    tracked = _git(source.parent, "ls-files", "--error-unmatch", source.name)
    return tracked and _git(source.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def now() -> str:
    """The time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
