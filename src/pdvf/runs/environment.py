"""What a run was made with: versions, device, commit."""

from __future__ import annotations

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
    """Kind and number of the devices that JAX computes on."""
    devices = jax.devices()
    return {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)}


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
