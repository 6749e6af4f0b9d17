"""Attacks run folders: mutates copies of a small finished run by class, then opens, verifies, loads and reads them.

    python tools/campaign/folders.py --seconds 180 --seed 0

A mutation is `refused` (RunError or ConfigError, one line), `acted` (everything was read as usual) or `failed`: any
other exception, a hang, a file written outside the folder, a stranger's code run, a script on the page, or something
accepted that has to be refused. The same seed gives the same mutations; the time decides how many.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from pdvf.cli import main as cli
from pdvf.config import ConfigError, from_dict
from pdvf.deploy.card import markdown
from pdvf.deploy.export import make_card
from pdvf.experiment import comparison
from pdvf.experiment.cost import environment_steps
from pdvf.experiment.errors import RunError
from pdvf.experiment.events import Event, write_event
from pdvf.experiment.scalars import TensorBoard
from pdvf.experiment.store import RunStore
from pdvf.live.watch import RunPage
from pdvf.methods import METHODS
from pdvf.paper import pipeline
from pdvf.reports import embedded, page, report, tables
from pdvf.reports.data import read_returns, read_run
from pdvf.reports.style import png

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "runs" / "campaign"
LIMIT = 60.0
"""Seconds after which a mutation counts as a hang."""
DRAWN, REPORTED = 0.03, 0.0005
"""Shares of mutations after which a figure is drawn, and the whole report is written."""
SCRIPT = "<script>alert(1)</script>"
EXAMPLES = 5
"""Failures of a class that are told."""


class Hang(BaseException):
    """Raised by the alarm; no handler of the program's may catch it."""


def make_base(work: Path = WORK) -> Path:
    """A small finished run, made once."""
    folder = work / "base"
    if not (folder / "report.html").is_file():
        sys.path.insert(0, str(ROOT / "tests"))
        from tiny import TINY, command_line

        words = ["run", "spaceship", *command_line(TINY), "--out", str(folder), "--quiet"]
        subprocess.run([sys.executable, "-m", "pdvf", *words], check=True, stdout=subprocess.DEVNULL)
    return folder


# Mutations: each changes the folder, given a source of chance


def _descend(rng: random.Random, data: Any) -> tuple[Any, Any]:
    """A random place in JSON data, as container and key; shallow places are likelier."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return data, None
        key = rng.choice(keys)
        below = data[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.35:
            return data, key
        data = below


def _json_file(rng: random.Random, folder: Path) -> Path:
    files = [folder / "config.json", folder / "environment.json", *sorted((folder / "artefacts").glob("*.json"))]
    return rng.choice(files)


def _edit_json(change: Callable[[random.Random, Any, Any], None]) -> Callable[[random.Random, Path], None]:
    def mutate(rng: random.Random, folder: Path) -> None:
        path = _json_file(rng, folder)
        data = json.loads(path.read_text())
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            change(rng, *_descend(rng, data))
        path.write_text(json.dumps(data))

    return mutate


VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    7,
    1.5,
    "",
    "x",
    "1",
    "../../x",
    SCRIPT,
    [],
    {},
    [1],
    [[1, "a"]],
    {"a": 1},
)
NUMBERS: tuple[Any, ...] = (
    2**31, 2**62, 2**63, -(2**63) - 1, 10**400, 1e30, 1e308, -1e308, 5e-324, float("nan"), float("inf"), -float("inf"),
)  # fmt: skip


def _set(value: Callable[[random.Random], Any]) -> Callable[[random.Random, Any, Any], None]:
    def change(rng: random.Random, place: Any, key: Any) -> None:
        if key is not None:
            place[key] = value(rng)

    return change


def _fields(rng: random.Random, place: Any, key: Any) -> None:
    if key is not None and rng.random() < 0.6:
        del place[key]
    elif isinstance(place, dict):
        place[rng.choice(("", "new", "a.b", "ppo.steps", SCRIPT, "\n\x1b[31m", "é"))] = copy.deepcopy(
            rng.choice(VALUES)
        )
    else:
        place.append(copy.deepcopy(rng.choice(VALUES)))


def _nested(rng: random.Random, folder: Path) -> None:
    depth = rng.choice((20, 31, 40, 500, 990, 5_000, 100_000))
    kind = rng.choice((("[", "]"), ('{"a":', "}")))
    deep = kind[0] * depth + "1" + kind[1] * depth
    path = _json_file(rng, folder)
    data = json.loads(path.read_text())
    place, key = _descend(rng, data)
    if key is None or rng.random() < 0.2:
        path.write_text(deep)
        return
    place[key] = "@deep@"
    path.write_text(json.dumps(data).replace('"@deep@"', deep))


def _bytes_of(rng: random.Random, data: bytes) -> bytes:
    """Truncated, flipped, cut or filled."""
    kind = rng.choice(("truncate", "flip", "flip", "cut", "insert", "empty", "zeros"))
    at = rng.randrange(max(len(data), 1))
    if kind == "truncate":
        return data[:at]
    if kind == "flip":
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if kind == "cut":
        return data[:at] + data[at + rng.randrange(1, 40) :]
    if kind == "insert":
        return data[:at] + rng.choice((b"\xff\xfe", b"\x00", b'"\\ud800"', b"NaN", b"1e999", b"[", b"}")) + data[at:]
    return b"" if kind == "empty" else bytes(len(data))


def _json_bytes(rng: random.Random, folder: Path) -> None:
    path = _json_file(rng, folder)
    path.write_bytes(_bytes_of(rng, path.read_bytes()))


def _tensors(rng: random.Random, folder: Path) -> Path:
    files = sorted((folder / "artefacts").glob("*.safetensors"))
    return rng.choice([folder / "artefacts" / "evaluation.safetensors", *files])


def _tensor_bytes(rng: random.Random, folder: Path) -> None:
    path = _tensors(rng, folder)
    old = path.read_bytes()
    while (new := _bytes_of(rng, old)) == old:
        pass
    path.write_bytes(new)


def _sign(path: Path, data: bytes) -> None:
    """Writes a file and its checksum into all manifests, as whoever alters a folder on purpose would."""
    path.write_bytes(data)
    manifest = path.with_suffix(".json")
    described = json.loads(manifest.read_text())
    old, new = described["sha256"], hashlib.sha256(data).hexdigest()
    described |= {"bytes": len(data), "sha256": new}
    manifest.write_text(json.dumps(described))
    for other in path.parent.glob("*.json"):
        other.write_text(other.read_text().replace(old, new))


def _resigned(rng: random.Random, folder: Path) -> None:
    path = _tensors(rng, folder)
    data = path.read_bytes()
    if rng.random() < 0.5:
        _sign(path, _bytes_of(rng, data))
        return
    size = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    name = rng.choice([key for key in header if key != "__metadata__"])
    dtypes = ("F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "I32", "F32", "C64", "x", None, 3)
    field, value = rng.choice(
        (
            ("dtype", rng.choice(dtypes)),
            ("shape", rng.choice(([], [0], [-1], [2**40, 2**40], [10**9], "x", None, [1.5]))),
            ("data_offsets", rng.choice(([0, 0], [0, 2**62], [-1, 4], [4, 0], None, [0]))),
        )
    )
    header[name][field] = value
    text = json.dumps(header).encode()
    length = rng.choice((len(text), len(text), len(text), 2**63, 0, len(text) + 10**6))
    _sign(path, length.to_bytes(8, "little") + text + rest)


def _arrays(rng: random.Random, folder: Path) -> None:
    path = _tensors(rng, folder)
    arrays = safetensors.numpy.load_file(path)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not arrays:
            break
        name = rng.choice(sorted(arrays))
        array = arrays[name]
        kind = rng.choice(("remove", "dtype", "shape", "odd", "odd", "constant", "add", "grow", "shuffle"))
        if kind == "remove":
            del arrays[name]
        elif kind == "dtype":
            arrays[name] = array.astype(
                rng.choice(("float64", "float16", "int64", "int32", "bool", "float32", "uint8"))
            )
        elif kind == "shape":
            other = rng.choice(((-1,), (1, -1), (-1, 1), (1, *array.shape), array.shape[::-1]))
            arrays[name] = array.reshape(other)
        elif kind == "odd" and array.size:
            flat = array.copy().reshape(-1)
            odd = rng.choice((np.nan, np.inf, -np.inf, 3e38, 1e30, -1e30, 1e-45, -1, 0, 2**31 - 1))
            with np.errstate(all="ignore"):
                flat[rng.randrange(flat.size)] = np.float64(odd).astype(flat.dtype)
            arrays[name] = flat.reshape(array.shape)
        elif kind == "constant":
            arrays[name] = np.full_like(array, rng.choice((0, 1)))
        elif kind == "add":
            arrays[rng.choice((SCRIPT, "new", "returns", "transfer"))] = np.zeros((2, 3), np.float32)
        elif kind == "grow" and array.ndim:
            axis = rng.randrange(array.ndim)
            part = array.take([0] if rng.random() < 0.5 and array.shape[axis] else [], axis)
            arrays[name] = part if rng.random() < 0.5 else np.concatenate([array, part], axis)
        elif kind == "shuffle" and array.ndim:
            arrays[name] = array[::-1].copy()
    _sign(path, safetensors.numpy.save({name: np.array(array, order="C") for name, array in arrays.items()}))


def _leaves(data: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)


def _config_values(rng: random.Random, folder: Path) -> None:
    """Another configuration that is as good as the run's own."""
    path = folder / "config.json"
    text = path.read_text()
    while True:
        data = json.loads(text)
        *groups, name = rng.choice([leaf for leaf in _leaves(data) if leaf != ("family",)])
        place = data
        for group in groups:
            place = place[group]
        value = place[name]
        if isinstance(value, bool):
            place[name] = not value
        elif isinstance(value, int | float):
            place[name] = type(value)(value * rng.choice((2, 3, 4)) + rng.choice((0, 1, 2)))
        elif name == "engine":
            place[name] = rng.choice(("auto", "native"))
        with contextlib.suppress(ConfigError):
            from_dict(data)
            if data != json.loads(text):
                path.write_text(json.dumps(data, indent=2))
                return


def _returns(rng: random.Random, folder: Path) -> None:
    path = folder / "returns.csv"
    if rng.random() < 0.3:
        path.write_bytes(_bytes_of(rng, path.read_bytes()))
        return
    rows = list(csv.reader(io.StringIO(path.read_text())))
    odd = (
        "",
        "x",
        "-1",
        "nan",
        "inf",
        "1e308",
        "1e30",
        "9" * 30,
        "9" * 5000,
        "1.5",
        "test",
        "train",
        "pd-vf",
        SCRIPT,
        "$\\frac$",
        "=1+1",
        "\x00",
    )
    for _ in range(rng.choice((1, 1, 2, 5))):
        kind = rng.choice(("cell", "cell", "column", "drop", "twice", "short", "long"))
        row = rng.randrange(len(rows))
        column = rng.randrange(len(rows[0]))
        if kind == "cell":
            rows[row] = [rng.choice(odd) if i == column else cell for i, cell in enumerate(rows[row])]
        elif kind == "column":
            old, new = rng.choice(rows)[column:][:1] or [""], rng.choice(odd)
            rows = [[new if [cell] == old and i == column else cell for i, cell in enumerate(line)] for line in rows]
        elif kind == "drop":
            rows = [line for i, line in enumerate(rows) if i != row] or [[]]
        elif kind == "twice":
            rows.append(list(rows[row]))
        elif kind == "short":
            rows[row] = rows[row][:-1]
        else:
            rows[row] = [*rows[row], rng.choice(odd)]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    path.write_text(text.getvalue())


def _links(rng: random.Random, folder: Path) -> None:
    """A symbolic link in place of a folder or a file, or where a file is written aside."""
    outside = folder.parent / "outside"
    names = ["artefacts", "figures", "tensorboard", "logs", ".lock", "config.json", "environment.json", "returns.csv"]
    names += ["events.jsonl"]
    names += ["report.html", "summary.csv", "report.html.tmp", "summary.csv.tmp", ".lock.tmp", "tensorboard/train"]
    names += [f"figures/{name}.png{end}" for name in ("test_returns", "losses") for end in ("", ".tmp")]
    names += [f"artefacts/evaluation{end}" for end in (".json", ".safetensors", ".json.tmp", ".safetensors.tmp")]
    for name in rng.sample(names, rng.choice((1, 1, 2))):
        path = folder / name
        if path.parent.is_symlink():
            continue
        target = rng.choice((outside, outside / "file", outside / "nothing", Path("/dev/zero"), Path(".."), path))
        if path.is_dir() and not path.is_symlink():
            shutil.move(path, outside.parent / "moved" / name)  # a link to the folder's own contents
            target = rng.choice((target, outside.parent / "moved" / name))
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


def _planted(rng: random.Random, folder: Path) -> None:
    """Files, folders and pipes that nobody expects."""
    names = [
        "x",
        "-rf",
        "a b",
        "new\nline",
        "é",
        SCRIPT.replace("/", "_"),
        "x.tmp",
        "config.json.tmp",
        "agent-x y.json",
    ]
    names += ["agent-a.json", "returns-x", "returns-z.json", "train-stage-9999.json", "train-stage-٣.json"]
    names += ["train-stage-0001.safetensors", "evaluation.json.tmp", "agent-a.safetensors", "returns-z.safetensors"]
    names += ["config.json", "returns.csv", "environment.json", "evaluation.json", "evaluation.safetensors", ".lock"]
    for name in rng.sample(names, rng.choice((1, 2, 3))):
        path = (
            rng.choice((folder, folder / "artefacts", folder / "artefacts", folder / "figures", folder / "logs")) / name
        )
        if path.parent == folder and name in ("config.json", "returns.csv") and rng.random() < 0.5:
            continue
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        path.parent.mkdir(exist_ok=True)
        kind = rng.choice(("file", "folder", "pipe", "copy"))
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "file":
            path.write_bytes(b"{}")
        else:
            path.write_bytes(
                (folder / "artefacts" / f"policies{path.suffix or '.json'}").read_bytes()
                if path.suffix in (".json", ".safetensors")
                else b""
            )


def _names(rng: random.Random, folder: Path) -> None:
    """Markup in names that the page shows; the artefacts stay bound to the configuration."""
    odd = rng.choice((SCRIPT, f'"{SCRIPT}', f"'>{SCRIPT}", f"</code>{SCRIPT}", "<img src=x onerror=alert(1)>"))
    kind = rng.choice(("environment", "versions", "method", "protocol", "config"))
    if kind == "environment":
        path = folder / "environment.json"
        data = json.loads(path.read_text())
        place = rng.choice((data, data["device"], data["versions"]))
        place[rng.choice(list(place))] = odd
        data["device"] = data["device"] if isinstance(data["device"], dict) else {"kind": odd}
        data["versions"] = data["versions"] if isinstance(data["versions"], dict) else {odd: odd}
        path.write_text(json.dumps(data))
    elif kind == "versions":
        path = folder / "artefacts" / "policies.json"
        data = json.loads(path.read_text())
        data["versions"] |= {"jax": odd, odd: odd}
        data["device"] |= {"kind": odd}
        path.write_text(json.dumps(data))
    elif kind == "config":
        path = folder / "config.json"
        data = json.loads(path.read_text())
        data[odd] = odd
        path.write_text(json.dumps(data))
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        for manifest in (folder / "artefacts").glob("*.json"):
            described = json.loads(manifest.read_text()) | {"config": hashlib.sha256(text.encode()).hexdigest()}
            manifest.write_text(json.dumps(described))
    else:
        path = folder / "returns.csv"
        rows = list(csv.reader(io.StringIO(path.read_text())))
        at = rows[0].index(kind)
        for row in rows[1:]:
            row[at] = odd if row[at] in ("nn", "peek") else row[at]
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        path.write_text(text.getvalue())


def _events(rng: random.Random, folder: Path) -> None:
    """Events that nobody has told, with markup; other endings of lines; a file that is mostly a hole."""
    names = ("train", "returns-pd-vf", "x" * 10_000, SCRIPT, "", 3)
    sound = {"time": 0.0, "run": "r", "task": "train", "kind": "stage", "stage": 1, "stages": 3, "seconds": 2.0}
    lines = []
    for _ in range(rng.choice((1, 5, 200))):
        data = sound | {"metrics": {"train_return": 1.0, "test": 0.5}, "error": rng.choice(("", SCRIPT))}
        data |= {"task": rng.choice(names), "kind": rng.choice(("start", "stage", "finish", "fail", SCRIPT))}
        data |= {"stage": rng.randrange(4)}
        change = rng.choice((_set(lambda rng: rng.choice((*VALUES, *NUMBERS))), _fields, lambda *given: None))
        change(rng, *_descend(rng, data))
        lines.append(json.dumps(data).encode())
    text = rng.choice((b"\n", b"\n", b"\r", b"\r\n", b"\n\r\n")).join(lines) + rng.choice((b"\n", b""))
    path = folder / "events.jsonl"
    path.write_bytes(_bytes_of(rng, text) if rng.random() < 0.2 else text)
    if rng.random() < 0.1:
        os.truncate(path, 2**33)


EVIL = "import pathlib\npathlib.Path(__file__).with_name('MARKER').write_text('ran')\nfamily = None\n"


def _hostile(rng: random.Random, folder: Path) -> None:
    """A configuration that names code beside the folder."""
    beside = folder.parent / "evil"
    for name in ("evil.py", "evil_package/__init__.py", "evil_package/module.py"):
        (beside / name).parent.mkdir(parents=True, exist_ok=True)
        (beside / name).write_text(EVIL)
    targets = ("evil.py:family", "evil_package.module:family", "evil:family", str(beside / "evil.py") + ":family")
    path = folder / "config.json"
    data = json.loads(path.read_text()) | {"family": rng.choice(targets)}
    if rng.random() < 0.5:
        data["environment"] = {"horizon": 8, "probe_steps": 1}
    path.write_text(json.dumps(data))


CLASSES: dict[str, Callable[[random.Random, Path], None]] = {
    "JSON: other types": _edit_json(_set(lambda rng: copy.deepcopy(rng.choice(VALUES)))),
    "JSON: fields removed or added": _edit_json(_fields),
    "JSON: odd numbers": _edit_json(_set(lambda rng: rng.choice(NUMBERS))),
    "JSON: deep nesting": _nested,
    "JSON: bytes": _json_bytes,
    "arrays: bytes": _tensor_bytes,
    "arrays: re-signed, odd header": _resigned,
    "arrays: re-signed, other arrays": _arrays,
    "config.json: other valid values": _config_values,
    "returns.csv": _returns,
    "symbolic links": _links,
    "planted files": _planted,
    "markup in names": _names,
    "events": _events,
    "hostile family": _hostile,
}
WRITTEN = ("symbolic links", "planted files")
"""Classes after which files are written, too."""
REFUSED = ("arrays: bytes", "config.json: other valid values", "hostile family")
"""Classes of which nothing may be accepted."""


# What is done with a mutated folder


class Session:
    """A working copy of the run, mutated, exercised and put back."""

    def __init__(self, base: Path, work: Path) -> None:
        self.base, self.folder = base, work / "run"
        self.outside, self.evil, self.moved = work / "outside", work / "evil", work / "moved"
        self.original = {path.relative_to(base): path.read_bytes() for path in base.rglob("*") if path.is_file()}
        shutil.copytree(base, self.folder)
        self._make_outside()

    def _make_outside(self) -> None:
        for folder in (self.outside, self.moved):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        (self.outside / "file").write_text("precious")

    def restore(self) -> None:
        """Puts everything back that differs from the run."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            known = path.relative_to(self.folder)
            whole = self.base / known
            if path.is_symlink() or path.is_dir() != whole.is_dir() or not (path.is_file() or path.is_dir()):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            elif path.is_file() and known not in self.original:
                path.unlink()
        for known, data in self.original.items():
            path = self.folder / known
            if not path.is_file() or path.stat().st_size != len(data) or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        shutil.rmtree(self.evil, ignore_errors=True)

    def harm(self) -> str:
        """What was done outside the folder, put right."""
        found = ""
        if sorted(path.name for path in self.outside.rglob("*")) != ["file"]:
            found = f"written outside: {sorted(path.name for path in self.outside.rglob('*'))}"
        elif (self.outside / "file").read_text() != "precious":
            found = "a file outside was altered"
        elif next(self.evil.rglob("MARKER"), None):
            found = "a stranger's code was run"
        moved = [path for path in self.moved.rglob("*") if path.is_file()]
        if any(path.read_bytes() != self.original.get(path.relative_to(self.moved), b"") for path in moved):
            found = "written through a link"
        self._make_outside()
        return found

    def exercise(self, rng: random.Random, write: bool = False) -> None:
        """Opens, verifies, loads and reads the run, as every command does; draws figures now and then."""
        store = RunStore.open(self.folder)
        problem = pipeline.Problem(from_dict(store.config))
        with store.lock():
            for name in store.names(""):
                store.load_arrays(name)
            if self.whole:
                for _ in comparison.method_rows(store, problem):
                    pass
                shapes = pipeline.artefact_shapes(problem)
                for phase in pipeline.PHASES.values():
                    for name in (leaf for leaf, untrained in phase.untrained.items() if untrained):
                        store.load(name, shapes[name])
            html, watched = "", RunPage(self.folder)
            with contextlib.suppress(RunError):  # it may be the rest of the folder that is refused
                tables.terminal(read_returns(store), environment_steps(store))
                made = make_card(store, problem, METHODS["pd-vf"], 0, SCRIPT)
                html += markdown({"family": SCRIPT, "observation": 1, "action": 1, "card": made})
            html += "".join(watched.page() for _ in range(2)).replace("<script>\nsetInterval", "")
            run = read_run(store)
            html, summary = html + page.render(run, [], []), tables.summary(run)
            for markup in ("<script", "<img"):
                assert markup not in html, f"{markup} on the page"
            if write:
                self._write(store, html, summary)
            chance = rng.random()
            if chance < DRAWN:
                entry = rng.choice(report.ENTRIES)
                figure = entry.draw(run)
                if figure is not None:
                    page.render(run, [page.Shown(entry.name, entry.title, png(figure))], [])
            elif chance < DRAWN + REPORTED:
                report.write_report(store)

    def _write(self, store: RunStore, html: str, summary: str) -> None:
        """Writes wherever commands write."""
        for name, text in (("report.html", html), ("summary.csv", summary), ("returns.csv", "")):
            store.write_text(name, text)
        for name in ("test_returns", "losses"):
            store.write_text(f"figures/{name}.png", "")
        store.save("evaluation", store.load_arrays("evaluation"), inputs=("policies",))
        store.save_stage("train", 1, {"x": np.zeros(1)})
        store.clear_stages("train")
        event = Event(0.0, "run", "train", "stage", 1, 1, 0.0, {"x": 1.0})
        write_event(store.folder, event)
        with contextlib.closing(TensorBoard(store.folder)) as curves:
            curves(event)

    @property
    def whole(self) -> bool:
        """Whether the base is a real run, whose artefacts have the shapes of its configuration."""
        return (self.base / "artefacts" / "initial_adapter.json").is_file()

    def commands(self, rng: random.Random) -> None:
        """A command line on a hostile folder, from the folder of the code it names."""
        run = str(self.folder)
        words = rng.choice(
            (
                *(["report", run], ["evaluate", run], ["diagnose", run], ["train", run], ["fit", run]),
                *(
                    ["export", run, str(self.folder / "x.pdvf")],
                    ["sweep", "spaceship", "--config", f"{run}/config.json"],
                ),
                *(["compare", "spaceship", "--out", run], ["run", "spaceship", "--out", run]),
                *(["plan", "spaceship", "--like", run], ["init", "spaceship", "--out", run]),
                *(["check-engine", "swimmer", "--run", run], ["report", run, "--family", "spaceship"]),
            )
        )
        said = io.StringIO()
        with contextlib.chdir(self.evil), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            status = cli.main(words)
        line = said.getvalue()
        assert (status, line.count("\n"), line[:6]) == (2, 1, "pdvf: "), (
            f"{words[0]}: status {status}, said {line[:300]!r}"
        )
        raise RunError(line)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise Hang

    handler = signal.signal(signal.SIGALRM, ring)
    before = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def campaign(seconds: float, seed: int, base: Path | None = None) -> dict[str, dict[str, Any]]:
    """Mutates for so long, each class once at least, and counts what came of it by class."""
    base = base or make_base()
    found = {name: {"tried": 0, "refused": 0, "acted": 0, "failed": 0, "examples": []} for name in CLASSES}
    plane, embedded.plane = embedded.plane, lambda points: np.asarray(points)[:, :2]  # t-SNE takes seconds
    try:
        with tempfile.TemporaryDirectory() as work, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session = Session(base, Path(work))
            session.exercise(random.Random(0))  # compiles and caches: the run itself has to be sound
            end, i = time.monotonic() + seconds, 0
            while time.monotonic() < end or i < len(CLASSES):
                name = list(CLASSES)[i % len(CLASSES)]
                outcome, example = _once(session, name, random.Random(f"{seed} {i}"))
                counted = found[name]
                counted["tried"] += 1
                counted[outcome] += 1
                if outcome == "failed" and len(counted["examples"]) < EXAMPLES:
                    counted["examples"].append(f"seed {seed}, number {i}: {example}")
                i += 1
    finally:
        embedded.plane = plane
    return found


def _once(session: Session, name: str, rng: random.Random) -> tuple[str, str]:
    """One mutation of a class: what came of it, and in which words."""
    outcome, words = "acted", ""
    CLASSES[name](rng, session.folder)
    try:
        with _alarm(LIMIT):
            session.commands(rng) if name == "hostile family" else session.exercise(rng, name in WRITTEN)
    except (RunError, ConfigError) as error:
        outcome, words = "refused", str(error)
        if "\n" in words.strip():
            outcome = "failed"
    except (Exception, SystemExit, Hang) as error:
        outcome, words = "failed", f"{type(error).__name__}: {error}"[:300]
        trace = error.__traceback__
        while trace and trace.tb_next:
            trace = trace.tb_next
        if trace:
            words += f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
    harm = session.harm()
    if harm or (outcome == "acted" and name in REFUSED):
        outcome, words = "failed", harm or "accepted"
    session.restore()
    return outcome, words


def table(found: dict[str, dict[str, Any]]) -> str:
    """For people."""
    lines = [f"{'':<34} {'tried':>7} {'refused':>8} {'acted':>7} {'failed':>7}"]
    total = {key: sum(counted[key] for counted in found.values()) for key in ("tried", "refused", "acted", "failed")}
    for name, counted in (*found.items(), ("together", total)):
        lines.append(f"{name:<34} " + " ".join(f"{counted[key]:>{7 + (key == 'refused')}}" for key in total))
    for name, counted in found.items():
        lines += [f"  {name}: {example}" for example in counted["examples"]]
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = campaign(given.seconds, given.seed)
    print(table(found))
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return int(any(counted["failed"] for counted in found.values()))


if __name__ == "__main__":
    sys.exit(main())
