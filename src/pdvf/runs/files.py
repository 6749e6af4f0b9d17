"""Files that are whole or absent: written aside, synchronised and moved into place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pdvf.runs.errors import RunError

ASIDE = ".tmp"
"""Ending of a file that is being written; one that is left was cut short by a kill."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says in the user's words why a file could not be written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"no space left on the device while writing {path}: free space and run the same command "
                "again; everything finished is kept"
            ) from error
        raise RunError(
            f"cannot write {path} ({error.strerror or error}): make it writable, or use another --out"
        ) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Says in the user's words why a file could not be read."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot read {path} ({error.strerror or error}): check that it is there and readable"
        ) from error


def write_file(path: Path, data: bytes) -> None:
    """Whoever reads `path`, at any time and after any kill, finds the old bytes or the new ones, whole."""
    aside = path.with_name(path.name + ASIDE)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(aside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            with contextlib.suppress(OSError):
                aside.unlink()
        _sync_folder(path.parent)


def remove_file(path: Path) -> None:
    """Removes a file; one that is not there is no mistake."""
    with writing(path):
        path.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """Checksum of a file, read piece by piece."""
    with reading(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(data: Mapping[str, Any]) -> bytes:
    """Strict JSON, for people too: arrays become lists, and numbers that are not finite become null."""
    return (json.dumps(_plain(data), indent=2, allow_nan=False) + "\n").encode()


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """The object in a JSON file; `advice` ends the message when there is none."""
    with reading(path):
        data = path.read_bytes()
    try:
        value = json.loads(data)
    except ValueError as error:
        raise RunError(f"{path} is not JSON ({error}): {advice}") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} holds a JSON {type(value).__name__}, expected an object: {advice}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
