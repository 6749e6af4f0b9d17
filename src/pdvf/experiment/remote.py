"""Runs in an object store: `s3://BUCKET/RUN`, `gs://BUCKET/RUN`, or whatever else fsspec knows.

What is finished is in the store, and a folder here is the working copy: it is made to agree with the store before a
command begins, and every artefact is published, its manifest last, once it is whole on the disk. Objects appear at
once or not at all. One writer at a time holds a lease: an object with a time at which it expires, renewed before.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pdvf.core.processes import is_alive
from pdvf.core.validation import ConfigError
from pdvf.experiment.errors import RunError
from pdvf.experiment.files import read_file, remove_file, write_file
from pdvf.experiment.manifest import NAME

T = TypeVar("T")
ADDRESS = re.compile(r"([a-z][a-z0-9+.]+):/+(.+)")
"""One slash is enough: a path has lost the other."""
ARTEFACTS, DATA, MANIFEST = "artefacts", ".safetensors", ".json"
HEAD = ("config.json", "environment.json")
LEASE = "lease.json"
PATIENCE = 120.0
"""Seconds for which a store that does not answer is tried again."""
LEASED = 60.0
"""Seconds after which a lease that nobody has renewed expires."""
OTHERS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""Packages that fsspec needs, by the beginning of an address."""


class Holder(NamedTuple):
    """Who holds a lease."""

    host: str
    process: int
    token: str
    until: float
    """Seconds since 1970."""


class Remote:
    """A run in a store."""

    def __init__(self, scheme: str, path: str) -> None:
        self.url, self._path, self._scheme = f"{scheme}://{path}", path, scheme
        self._lost = False

    @property
    def folder(self) -> Path:
        """The working copy."""
        cache = os.environ.get("PDVF_CACHE") or Path.home() / ".cache" / "pdvf"
        parts = [part for part in self._path.split("/") if part not in ("", ".", "..")]
        return Path(cache, "runs", self._scheme, *parts)

    def pull(self, folder: Path, wanted: Callable[[str], bool] | None = None) -> None:
        """Makes a working copy agree with the store; `wanted` chooses among the names of artefacts."""
        there = self._names()
        if there - {LEASE} and "config.json" not in there:
            raise RunError(f"{self.url} is not a run (it has no config.json): give a new or empty place")
        for name in HEAD:
            if name not in there:  # left by a kill before it was published, or deleted
                remove_file(folder / name)
            elif (data := self._read(name)) != _known(folder / name):
                write_file(folder / name, data)
        manifests = (re.fullmatch(f"({ARTEFACTS}/{NAME.pattern}){re.escape(MANIFEST)}", name) for name in there)
        found = {match[1] for match in manifests if match and match[1] + DATA in there}
        if wanted is None:
            for file in (folder / ARTEFACTS).glob(f"*{MANIFEST}"):
                if f"{ARTEFACTS}/{file.stem}" not in found:
                    remove_file(file)
        for name in sorted(found):
            if wanted is None or wanted(name.removeprefix(f"{ARTEFACTS}/")):
                self._fetch(folder, name)

    def _fetch(self, folder: Path, name: str) -> None:
        manifest, file = self._read(name + MANIFEST), folder / (name + MANIFEST)
        if (folder / (name + DATA)).is_file() and _known(file) == manifest:
            return
        remove_file(file)
        write_file(folder / (name + DATA), self._read(name + DATA))
        write_file(file, manifest)

    def publish(self, folder: Path, *names: str) -> None:
        """Sends files of a working copy, in this order."""
        for name in names:
            self._require_lease()
            data = read_file(folder / name)
            self._patiently(lambda files, data=data, name=name: files.pipe_file(self._at(name), data))

    def publish_new(self, folder: Path, name: str) -> None:
        """Sends a file that must not be there yet; if it is, fetches that one instead."""
        if not self._create(name, read_file(folder / name)):
            write_file(folder / name, self._read(name))

    def remove(self, name: str) -> None:
        """Removes an object; one that is not there is no mistake."""
        self._require_lease()
        with contextlib.suppress(FileNotFoundError):
            self._patiently(lambda files: files.rm_file(self._at(name)))

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        """Makes this process the only writer."""
        token, ended = secrets.token_hex(8), threading.Event()
        self._take(token)

        def renew() -> None:
            while not ended.wait(LEASED / 4):
                with contextlib.suppress(RunError):  # the next time may go well
                    if (holder := self._holder()) is None or holder.token != token:
                        self._lost = True
                        return
                    self._patiently(lambda files: files.pipe_file(self._at(LEASE), _lease(token)), LEASED / 4)

        renewing = threading.Thread(target=renew, daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            with contextlib.suppress(RunError):
                if not self._lost:
                    self.remove(LEASE)

    def _take(self, token: str) -> None:
        """Waits until the lease of a writer that was killed expires; one that is alive is an error."""
        first, began = None, time.monotonic()
        while not self._create(LEASE, _lease(token)):
            if (holder := self._holder()) is None:
                continue
            first = first or holder
            dead = holder.host == socket.gethostname() and not is_alive(holder.process)
            if dead or time.time() > holder.until or time.monotonic() > began + LEASED:  # a clock may be wrong
                self.remove(LEASE)
            elif holder == first:
                time.sleep(1.0)
            else:  # renewed
                raise RunError(
                    f"process {holder.process} on {holder.host} is writing to {self.url}: wait until it ends, or use "
                    "another --out"
                )
        if first is not None:  # two may have taken an expired lease, and the later one has it
            time.sleep(1.0)
            if (holder := self._holder()) is None or holder.token != token:
                raise RunError(f"another command has begun to write to {self.url}: wait until it ends")

    def _require_lease(self) -> None:
        if self._lost:
            raise RunError(
                f"the lease of {self.url} was lost: it was not renewed for {LEASED:.0f} s and another command has "
                "taken it, or the object was deleted; everything published is kept"
            )

    def _holder(self) -> Holder | None:
        try:
            holder = Holder(**json.loads(self._read(LEASE)))
            kinds = (str, int, str, float)
            if any(not isinstance(value, kind) for value, kind in zip(holder, kinds, strict=True)):
                raise TypeError
            return holder
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, RecursionError):
            raise RunError(f"{self.url}/{LEASE} is not a lease of ours: delete it if nobody is writing there") from None

    def _names(self) -> set[str]:
        """Objects, relative to the run; the first question to a store is asked once."""

        def find(files: Any) -> set[str]:
            files.invalidate_cache()
            root = files._strip_protocol(self.url).rstrip("/") + "/"
            return {path.removeprefix(root) for path in files.find(root) if path.startswith(root)}

        return self._patiently(find, 0.0)

    def _read(self, name: str) -> bytes:
        return self._patiently(lambda files: files.cat_file(self._at(name)))

    def _create(self, name: str, data: bytes) -> bool:
        """Whether an object was made; not if it is there."""
        try:
            self._patiently(lambda files: files.pipe_file(self._at(name), data, mode="create"))
        except FileExistsError:
            return False
        return True

    def _at(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _patiently(self, call: Callable[[Any], T], patience: float = PATIENCE) -> T:
        """What a call of the file system returns, tried again while the store does not answer."""
        until, pause = time.monotonic() + patience, 0.5
        while True:
            try:
                return call(_files(self._scheme))
            except (FileNotFoundError, FileExistsError, ConfigError):
                raise
            except Exception as error:
                words = " ".join(str(error).split())[:200]
                if "PreconditionFailed" in words or "At least one of the pre-conditions" in words:
                    raise FileExistsError(words) from None
                if time.monotonic() > until or isinstance(error, PermissionError):
                    raise RunError(
                        f"cannot reach {self.url} ({type(error).__name__}: {words}): check the address, the network "
                        "and the credentials; everything published is kept, and the same command goes on"
                    ) from None
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def remote_at(place: str | Path) -> Remote | None:
    """The run at an address; None for a path here."""
    found = ADDRESS.fullmatch(str(place))
    if found is None or found[1] == "file":
        return None
    return Remote(found[1], found[2])


def local_at(place: str | Path) -> Path:
    """The folder here of a run: the one that a path names, or the working copy of an address."""
    remote = remote_at(place)
    if remote is not None:
        return remote.folder
    found = ADDRESS.fullmatch(str(place))
    return Path("/", found[2]) if found else Path(place)


def pulled(place: str | Path, wanted: Callable[[str], bool] | None = None) -> tuple[Path, Remote | None]:
    """The folder of a run; of one at an address, the working copy after it was brought up to date."""
    folder, remote = local_at(place), remote_at(place)
    if remote is not None:
        remote.pull(folder, wanted)
    return folder, remote


def _files(scheme: str) -> Any:
    """The file system of fsspec."""
    package = OTHERS.get(scheme, "fsspec")
    try:
        import fsspec

        return fsspec.filesystem(scheme, **({"use_listings_cache": False} if scheme in OTHERS else {}))
    except ImportError:
        install = "'pdvf[s3]'" if scheme == "s3" else package
        raise ConfigError(f"{scheme}:// needs {package}, which is not installed: pip install {install}") from None
    except ValueError as error:
        raise ConfigError(f"unknown kind of address {scheme}://, expected s3://, gs:// or a path ({error})") from None


def _known(file: Path) -> bytes | None:
    return read_file(file) if file.is_file() else None


def _lease(token: str) -> bytes:
    holder = Holder(socket.gethostname(), os.getpid(), token, time.time() + LEASED)
    return json.dumps(holder._asdict()).encode()
