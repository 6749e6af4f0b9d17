"""Files that are whole or absent: written aside, synchronised and moved into place."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pdvf.experiment.errors import RunError

DEPTH = 32
"""Levels of nesting in a JSON file of ours; the deepest, histories of metrics, have eight."""
LOCK = ".lock"
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
        if error.errno == errno.ELOOP:
            raise RunError(f"cannot write {path}, a symbolic link, which is not followed: remove it") from error
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
    """Whoever reads `path`, at any time and after any kill, finds the old bytes or the new ones, whole.

    A symbolic link at `path`, or where the file aside goes, is replaced and never followed.
    """
    aside = path.with_name(path.name + ASIDE)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            aside.unlink(missing_ok=True)
            with open(aside, "xb") as file:
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


def paths_in(folder: Path) -> list[Path]:
    """What a folder holds, sorted; nothing where it is not there."""
    with reading(folder):
        return sorted(folder.iterdir()) if folder.exists() else []


def remove_asides(folder: Path) -> None:
    """Removes what kills left of files that were being written in a folder."""
    for path in paths_in(folder):
        if path.name.endswith(ASIDE) and not path.is_dir():
            remove_file(path)


def folders_below(folder: Path) -> list[Path]:
    """A folder, if it is there, and all below it; raises where one is a symbolic link."""
    if folder.is_symlink():
        raise RunError(f"{folder} is a symbolic link, expected a folder: nothing is written through links; remove it")
    if not folder.is_dir():
        return []
    return [folder, *(deeper for path in paths_in(folder) if path.is_dir() for deeper in folders_below(path))]


def read_file(path: Path) -> bytes:
    """The bytes of a regular file; a pipe or a device would never end."""
    with reading(path):
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "not a regular file")
        return path.read_bytes()


def require_own_or_empty(folder: Path, head: str, what: str) -> None:
    """Raises unless a folder has the file `head`, which makes it ours, or nothing but what a kill may have left."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file, expected a folder: give a new or empty folder")
    others = [path.name for path in paths_in(folder) if path.name not in (LOCK, head + ASIDE)]
    if others and head not in others:
        raise RunError(f"{folder} is not {what} (it has {others[0]!r} and no {head}): give a new or empty folder")


def sha256(path: Path) -> str:
    """Checksum of a file, read piece by piece."""
    with reading(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(data: Mapping[str, Any]) -> bytes:
    """Strict JSON, for people too: arrays become lists, and numbers that are not finite become null."""
    return (json.dumps(_plain(data), indent=2, allow_nan=False) + "\n").encode()


def finite_json(data: Mapping[str, Any]) -> str:
    """The same in one line."""
    return json.dumps(_plain(data), allow_nan=False)


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as the text of a CSV file, the first with the names of the columns."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """The object in a JSON file, as `to_json` could have written it; `advice` ends the message when it is not."""
    data = read_file(path)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not JSON ({error}): {advice}") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} holds a JSON {type(value).__name__}, expected an object: {advice}")
    if odd := oddity(value):
        raise RunError(f"{path} holds {odd}: {advice}")
    return value


def require_fields(data: Mapping[str, Any], fields: Mapping[str, Sequence[type]], path: Path, advice: str) -> None:
    """Raises unless an object of a JSON file has these fields, each of one of these types; None: may be absent."""
    for name, kinds in fields.items():
        if name not in data and type(None) not in kinds:
            raise RunError(f"{path} has no field {name!r}: {advice}")
        if type(data.get(name)) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise RunError(f"{path}: {name!r} is a JSON {type(data[name]).__name__}, expected {expected}: {advice}")


def oddity(value: Any, depth: int = DEPTH) -> str:
    """What a JSON value holds that nothing of ours writes: too deep, not finite, larger than 64 bits, no Unicode."""
    if isinstance(value, dict | list):
        if not depth:
            return f"more than {DEPTH} levels of nesting"
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return next(filter(None, (oddity(part, depth - 1) for part in parts)), "")
    if isinstance(value, float) and not math.isfinite(value):
        return f"the number {value}, expected finite ones"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a whole number of more than 64 bits"
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        return "half of a surrogate pair, expected Unicode"
    return ""


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
