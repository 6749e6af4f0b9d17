"""The run store: one folder for each run, with its configuration, artefacts and unfinished phases.

    RUN/config.json               everything that decides the result
    RUN/environment.json          what it was made with
    RUN/artefacts/NAME.safetensors, NAME.json     an artefact and its manifest, written in this order
    RUN/artefacts/PHASE-stage-0003.*              the state of a phase after three of its stages
    RUN/events.jsonl              how far its tasks are (`events`)
    RUN/tensorboard/TASK/         curves
    RUN/logs/TASK.log             what the task's process said (`executors.processes`)

A run folder may come from a stranger. Everything in it is checked when it is read; a family that is not built in is
code, which is imported only for whoever names it; nothing is written through symbolic links below the folder.

An artefact is there when both of its files are. What a kill leaves behind (`*.tmp`, a file without its
manifest) counts as absent and is written over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy

from pdvf.config import flatten
from pdvf.experiment import files
from pdvf.experiment.errors import RunError
from pdvf.experiment.locking import locked
from pdvf.experiment.manifest import ANEW, NAME, checked_name, read_manifest
from pdvf.experiment.provenance import describe_environment, device, now, versions
from pdvf.experiment.pytrees import from_arrays, to_arrays
from pdvf.experiment.remote import Remote, pulled
from pdvf.families.registry import family_names

Tree = TypeVar("Tree")

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
SWEEP = "sweep.json"
"""In a folder whose `trials` are runs with environments held out."""
FOLDERS = ("artefacts", "figures", "logs", "tensorboard")
"""What a run writes to beside its own folder."""


@dataclass(frozen=True)
class RunStore:
    """A run's folder. Reading needs no lock; whoever writes artefacts holds `lock`."""

    folder: Path
    config: dict[str, Any]
    remote: Remote | None = None
    """The object store that all is published to, of which the folder is the working copy."""

    @classmethod
    def create(cls, folder: str | Path, config_dict: Mapping[str, Any], command: str) -> RunStore:
        """The run in this folder or at this address, which is new, or was made with the same configuration."""
        folder, remote = pulled(folder)
        if remote is None:  # a working copy is ours, whatever is left in it of a run that was deleted
            files.require_own_or_empty(folder, CONFIG, "a run folder")
        with files.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if not (folder / CONFIG).is_file():
            with locked(folder):
                if not (folder / CONFIG).is_file():
                    files.write_file(folder / CONFIG, files.to_json(config_dict))
                    if remote is not None:
                        remote.publish_new(folder, CONFIG)
        store = cls(folder, _read_config(folder), remote)
        changes = _changes(store.config, json.loads(files.to_json(config_dict)))
        if changes:
            more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
            raise RunError(
                f"{folder} was made with other options ({'; '.join(changes[:3])}{more}): "
                "use another --out, or the run's own options"
            )
        if not (folder / ENVIRONMENT).exists():
            files.write_file(folder / ENVIRONMENT, files.to_json(describe_environment(command)))
            if remote is not None:
                remote.publish_new(folder, ENVIRONMENT)
        return store

    @classmethod
    def open(cls, folder: str | Path, trials: bool = False, family: str | None = None) -> RunStore:
        """An existing run; with `trials` also one of a sweep, which has fewer environments than its options say.

        A run of a family that is not built in is opened only for whoever names that family: to use it is to run its
        code, and the folder may be a stranger's.
        """
        folder, remote = pulled(folder)
        if remote is not None and not (folder / CONFIG).is_file():
            raise RunError(f"{remote.url} is not a run (it has no {CONFIG}), or is not there: check the address")
        if not folder.is_dir():
            raise RunError(f"{folder} is not there or no folder, expected the folder of a run: check the path")
        if not (folder / CONFIG).is_file():
            raise RunError(f"{folder} is not a run folder (it has no {CONFIG}): give the folder of a run")
        if not trials and (sweep := folder.resolve().parent.parent / SWEEP).is_file():
            raise RunError(
                f"{folder} is a trial of the sweep {sweep.parent}, which holds training environments out of it, "
                "expected a run of its own: make one with the options that its config.json names"
            )
        config = _read_config(folder)
        named = config.get("family")
        if family is not None and named != family:
            raise RunError(
                f"{folder} is a run of the family {named!r}, expected {family!r}: name its own, or another run"
            )
        if family is None and isinstance(named, str) and named not in family_names():
            raise RunError(
                f"{folder} names the family {named!r}, expected one of {', '.join(family_names())}: any other is "
                "code that would be run; if you trust it, name it yourself with --family"
            )
        return cls(folder, config, remote)

    @contextlib.contextmanager
    def lock(self) -> Iterator[int]:
        """Makes this process the only writer, and tidies up after one that was killed.

        Raises where a folder that is going to be written to is a symbolic link.

        A process that inherits the file descriptor shares the lock until it ends.
        """
        with locked(self.folder) as descriptor, self.remote.lease() if self.remote else contextlib.nullcontext():
            for folder in (
                self.folder,
                *(path for name in FOLDERS for path in files.folders_below(self.folder / name)),
            ):
                files.remove_asides(folder)
            try:
                yield descriptor
            finally:
                self.publish_logs()

    @contextlib.contextmanager
    def lock_task(self, name: str) -> Iterator[None]:
        """Makes this process the only one at a task, for whom another holds `lock`.

        On another machine, the process of a command that was killed may need a moment to notice.
        """
        with locked(self.folder, checked_name(name)):
            yield

    # Artefacts

    def save(
        self,
        name: str,
        tree: Any,
        *,
        info: Mapping[str, Any] | None = None,
        inputs: Sequence[str] = (),
    ) -> None:
        """Writes an artefact; `inputs` are the artefacts it was made from, whose checksums are noted."""
        checksums = {source: self.manifest(source)["sha256"] for source in inputs}
        arrays = to_arrays(tree)
        data = safetensors.numpy.save(arrays)
        manifest = {
            "name": name,
            "file": self._file(name).name,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "arrays": {key: [str(array.dtype), list(array.shape)] for key, array in sorted(arrays.items())},
            "config": _config_hash(self.config),
            "inputs": checksums,
            "info": dict(info or {}),
            "versions": versions(),
            "device": device(),
            "created": now(),
        }
        self._write(name, data, files.to_json(manifest))

    def load(self, name: str, like: Tree) -> Tree:
        """The artefact as a tree with the structure of `like`, after `verify`."""
        arrays = self.load_arrays(name)
        try:
            return from_arrays(like, arrays)
        except RunError as error:
            made = self.manifest(name)["versions"].get("pdvf")
            raise RunError(
                f"artefact {self._file(name)}, made with pdvf {made}, does not fit here ({error}): {ANEW}"
            ) from error

    def load_arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of an artefact by name, after `verify`, for whoever needs no tree."""
        self.verify(name)
        file = self._file(name)
        try:
            with files.reading(file):
                return safetensors.numpy.load_file(file)
        except RunError:
            raise
        except Exception as error:  # of a parser that is not ours, in Rust and in Python
            raise RunError(f"artefact {file} holds no arrays that can be read ({error}): {ANEW}") from error

    def names(self, prefix: str) -> list[str]:
        """Artefacts whose name begins so, sorted."""
        found = sorted(path.stem for path in self._artefacts.glob(f"{prefix}*.json"))
        return [name for name in found if NAME.fullmatch(name) and self.has(name)]

    def adopt(self, name: str, other: RunStore) -> None:
        """Takes over an artefact of another run, unless it is there; the caller knows that both would be the same."""
        if self.has(name):
            return self.verify(name)
        other.verify(name)
        manifest = other.manifest(name) | {"config": _config_hash(self.config)}
        self._write(name, files.read_file(other._file(name)), files.to_json(manifest))

    def _write(self, name: str, data: bytes, manifest: bytes) -> None:
        self._remove(self._manifest(name))  # a manifest never stands beside another version's file
        files.write_file(self._file(name), data)
        files.write_file(self._manifest(name), manifest)
        self._publish(self._file(name), self._manifest(name))

    def _publish(self, *files: Path) -> None:
        if self.remote is not None:
            self.remote.publish(self.folder, *(file.relative_to(self.folder).as_posix() for file in files))

    def _remove(self, file: Path) -> None:
        files.remove_file(file)
        if self.remote is not None:
            self.remote.remove(file.relative_to(self.folder).as_posix())

    def publish_logs(self) -> None:
        """Sends events, logs and curves, where the run is in an object store; they are worth no failure."""
        if self.remote is None:
            return
        folders = (self.folder / "logs", self.folder / "tensorboard")
        said = [self.folder / "events.jsonl", *(file for folder in folders for file in folder.rglob("*"))]
        with contextlib.suppress(RunError):
            self._publish(*(file for file in said if file.is_file() and not file.is_symlink()))

    def verify(self, name: str) -> None:
        """Raises unless the artefact is there, whole, and made from the present version of its inputs."""
        manifest, file = self.manifest(name), self._file(name)
        with files.reading(file):
            size = file.stat().st_size
        differs = ""
        if size != manifest["bytes"]:
            differs = f"{size} bytes, manifest says {manifest['bytes']}"
        elif (found := files.sha256(file)) != (noted := manifest["sha256"]):
            differs = f"{size} bytes as in the manifest, but sha256 is {found[:12]}, manifest says {noted[:12]}"
        if differs:
            raise RunError(f"artefact {file} was truncated or altered ({differs}): {ANEW}")
        for source, checksum in manifest["inputs"].items():
            # An input that was deleted is no contradiction: it is compared when it has been made anew.
            if self.has(source) and self.manifest(source)["sha256"] != checksum:
                raise RunError(f"artefact {file} is stale, it was made from another version of {source!r}: {ANEW}")

    def manifest(self, name: str) -> dict[str, Any]:
        """Everything noted about an artefact, checked: types, names, and the configuration it was made by."""
        if not self.has(name):
            raise RunError(f"artefact {name!r} is not in {self.folder}: run the command that makes it")
        manifest = read_manifest(self._manifest(name), name)
        if manifest["config"] != _config_hash(self.config):
            raise RunError(
                f"artefact {self._file(name)} was made by another configuration than {self.folder / CONFIG} holds, "
                "which was altered, or the artefact is of another run: put the run's own file back, or delete the "
                "artefact to make it anew"
            )
        return manifest

    def info(self, name: str) -> dict[str, Any]:
        """What was given as `info` when the artefact was saved."""
        return self.manifest(name)["info"]

    def has(self, name: str) -> bool:
        """Whether the artefact is there, with its manifest."""
        return self._manifest(name).is_file() and self._file(name).is_file()

    def remove(self, name: str) -> None:
        """Removes an artefact, the manifest first, so that it is never there by half."""
        self._remove(self._manifest(name))
        self._remove(self._file(name))

    # Stages of a phase that is under way

    def save_stage(
        self,
        phase: str,
        stage: int,
        tree: Any,
        info: Mapping[str, Any] | None = None,
        inputs: Sequence[str] = (),
    ) -> None:
        """Keeps the state after `stage` stages of a phase, in place of earlier ones."""
        self.save(f"{phase}-stage-{stage:04d}", tree, info=info, inputs=inputs)
        for earlier, name in self._stages(phase):
            if earlier < stage:
                self.remove(name)

    def latest_stage(self, phase: str) -> tuple[int, str] | None:
        """The number of stages done and the artefact with the state after them."""
        return max((found for found in self._stages(phase) if self.has(found[1])), default=None)

    def clear_stages(self, phase: str) -> None:
        """Forgets the stages of a phase, once it is finished."""
        for _, name in self._stages(phase):
            self.remove(name)

    # Other files

    def write_bytes(self, relative: str, data: bytes) -> None:
        """Writes a file of the run, as a whole or not at all."""
        path = Path(relative)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{relative!r} is not a path below the run's folder")
        files.write_file(self.folder / path, data)
        self._publish(self.folder / path)

    def write_text(self, relative: str, text: str) -> None:
        """Writes a text file of the run in UTF-8, as a whole or not at all."""
        self.write_bytes(relative, text.encode())

    @property
    def _artefacts(self) -> Path:
        return self.folder / "artefacts"

    def _file(self, name: str) -> Path:
        return self._artefacts / f"{checked_name(name)}.safetensors"

    def _manifest(self, name: str) -> Path:
        return self._artefacts / f"{checked_name(name)}.json"

    def _stages(self, phase: str) -> list[tuple[int, str]]:
        """Stages of which anything is there."""
        pattern = re.compile(re.escape(checked_name(phase)) + r"-stage-([0-9]+)")
        names = {path.name.split(".")[0] for path in self._artefacts.glob(f"{phase}-stage-*")}
        return sorted((int(match[1]), name) for name in names if (match := pattern.fullmatch(name)))


def _read_config(folder: Path) -> dict[str, Any]:
    return files.read_json(folder / CONFIG, "put the run's own file back, or use another --out")


def _config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 of a configuration, however its file is laid out."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _changes(run: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """One phrase for each option in which two configurations differ."""
    old, new = ({k: json.dumps(v) for k, v in flatten(config)} for config in (run, given))
    pairs = {name: (old.get(name, "absent"), new.get(name, "absent")) for name in new | old}
    return [f"{name}: {then} in the run, {now} given" for name, (then, now) in pairs.items() if then != now]
