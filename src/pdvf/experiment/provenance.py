"""What a run was made with: versions, device, commit."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

import pdvf
import pdvf.config
from pdvf.experiment.files import read_json

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
    found: dict[str, str | None] = {"pdvf": pdvf.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def device() -> dict[str, Any]:
    """Kind and number of the devices that JAX computes on; other ones give other bits."""
    devices = jax.devices()
    found = {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)}
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
    if not (run / "environment.json").is_file():
        return None
    noted = read_json(run / "environment.json", "delete it").get("device")
    count = noted.get("count") if isinstance(noted, dict) and noted.get("platform") == "cpu" else None
    return count if isinstance(count, int) and 1 <= count <= 1024 else None


def changed_since(run: Path) -> str | None:
    """What is not as it was when a run was begun, in words, if it bears on the bits; None if nothing is."""
    if not (run / "environment.json").is_file():
        return None
    noted = read_json(run / "environment.json", "delete it")
    then, now = _deciding(noted.get("versions"), noted.get("device")), _deciding(versions(), device())
    changes = [f"{name} {then[name]} then, {now[name]} now" for name in now if then.get(name, now[name]) != now[name]]
    return "; ".join(changes) or None


def _deciding(versions: Any, device: Any) -> dict[str, Any]:
    """Versions and device as one flat dictionary."""
    parts = (part for part in (versions, device) if isinstance(part, dict))
    return {name: value for part in parts for name, value in part.items()}


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
