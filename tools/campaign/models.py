"""Attacks exported models of every layout: mutated files, odd callers, a million steps, coverage-guided fuzzing.

python tools/campaign/models.py --seconds 60 --seed 0       prints one table; exit status 1 if anything failed
python tools/campaign/models.py --seed 0 --replay 1234      one attack again, with its traceback

An attack is refused (AdapterError), or it acts (finite actions inside the bounds; the original's actions where the file
was not signed anew), or it has failed: any other exception, a warning, more than LIMIT seconds. Attack number i of a
seed is always the same. NumPy and safetensors only; with atheris (`pip install 'pdvf[campaign]'`) also
coverage-guided.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if importlib.util.find_spec("pdvf") is None:
    sys.path.insert(0, str(ROOT / "src"))
if os.environ.get("PDVF_COVERAGE"):
    import atheris  # it has to see the runtime being imported

    with atheris.instrument_imports(include=["pdvf.deploy", "json"]):
        import pdvf.deploy.belief_runtime
        import pdvf.deploy.card
        import pdvf.deploy.policy_runtime
        import pdvf.deploy.value_runtime  # noqa: F401
        from pdvf.deploy.model_format import FORMAT, VERSION, check, expected_shapes, layout_name, pack, sign
        from pdvf.deploy.runtime import Adapter, AdapterError
else:
    from pdvf.deploy.model_format import FORMAT, VERSION, check, expected_shapes, layout_name, pack, sign
    from pdvf.deploy.runtime import Adapter, AdapterError

LIMIT = 10.0  # seconds for one attack
MEMORY = 300.0  # MB that all attacks together may add to the largest resident size
LEAK = 1.0  # MB that a million steps may add
ODD = [None, True, False, 0, -1, 1, 2, 3, 5, 1000, 2**31, 2**63, 10**30, -(10**400), 0.0, -0.0, 0.5, 1e-300, 1e300]
ODD += [float("nan"), float("inf"), -float("inf"), "", "2", "nan", "spaceship", "\ud800", "\0", "x" * 10_000, [], {}]
ODD += [[1, 2], [[]], ["a"], [None], {"a": 1}, {"z_d": 3}, [0.0] * 10_000, [[1.0], [2.0, 3.0]]]
NUMBERS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 1e-38, 1e4, -1e4, 1.1e4, 1e30, -1e30, 3.4e38, -3.4e38, -1.0]
Model = tuple[dict[str, Any], dict[str, np.ndarray]]


class Hang(BaseException):
    """An attack that takes longer than LIMIT."""


class WrongError(AssertionError):
    """An action that should not have been."""


PROBING = {"z_d": 3, "probe": 4, "encoder": 6}
LAYOUTS: dict[str, dict[str, Any]] = {
    "value": {
        "anchor": 0.5,
        "anchor_width": 0.3,
        "anchors": 4,
        "sizes": {**PROBING, "z_pi": 2, "environments": 5, "members": 2, "decoder": 5, "value": 4},
    },
    "belief": {
        "prior_std": 0.7,
        "residual_edge": 3.0,
        "largest_mean": 1.5,
        "farthest_input": 8.0,
        "outlier": 20.0,
        "log_std_low": -7.0,
        "log_std_high": 3.0,
        "novelty_threshold": 2.0,
        "familiar_mean": 1.0,
        "sizes": {"code": 2, "actor": 4, "model": 5},
    },
    "policy": {"sizes": {"actor": 4}},
    "conditioned": {"sizes": {**PROBING, "actor": 4}},
    "nearest": {"sizes": {**PROBING, "actor": 4, "policies": 3}},
    "history": {"history": 3, "sizes": {"actor": 4, "estimator": 5, "feature": 2}},
}
"""What the header of each layout has of its own."""
TELLS = {
    "value": ("z_d", "predicted_return", "out_of_distribution"),
    "belief": ("mean", "covariance"),
    "conditioned": ("z_d",),
    "nearest": ("z_d", "out_of_distribution"),
    "history": ("estimate",),
}
"""What an adapter of each layout knows after an episode; a policy knows nothing."""
CARD = {
    "method": "tiny",
    "text": "as small as can be",
    "trained_on": {"environments": 3, "contexts": {"wind": [0.0, 1.5]}, "environment_steps": 100},
    "results": [{"environment": 16, "mean": 0.5, "low": 0.4, "high": 0.6, "episodes": 3}],
    "limits": ["nobody has trained it"],
}


def tiny_model(layout: str) -> Model:
    """A model of a layout as small as can be, whose parts all matter."""
    about = {
        "format": FORMAT,
        "version": VERSION,
        "family": "tiny",
        "observation": 3,
        "action": 2,
        "action_low": [-0.1, -3.0],
        "action_high": [0.7, 2.0],
        "control_step": 0.05,
        "probe_steps": 2,
        "seed": 7,
        "measured": {"16": 0.5},
        "layout": layout,
        "card": copy.deepcopy(CARD),
        **copy.deepcopy(LAYOUTS[layout]),
    }
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in expected_shapes(about).items()}
    for name in weights:
        if name.endswith(".width") or name in ("familiar", "scale.power", "scale.high", "model.temperature"):
            weights[name] = np.asarray(np.abs(weights[name]) + np.float32(0.5))
    check(about, weights)
    return about, weights


def play(file: Path) -> list[np.ndarray]:
    """The actions of one episode, with ordinary observations and the largest and smallest that there are."""
    adapter = Adapter.load(file)
    low, high = (np.array(adapter.about[name], float) for name in ("action_low", "action_high"))
    sizes = (1.0, 1e-40, 1.0, 1e6, 1e30, 3e38, 1.0)
    rng = np.random.default_rng(1)
    adapter.reset(np.zeros(adapter.observation_size))
    actions = []
    for t in range(adapter.probe_steps + len(sizes)):
        observation = rng.uniform(-1, 1, adapter.observation_size) * sizes[t % len(sizes)]
        actions.append(checked(adapter.act(observation), low, high))
    if not adapter.card().replace("\n", "").isprintable():
        raise WrongError("the model card is not for people")
    inferred = {name: adapter.inferred[name] for name in TELLS.get(layout_name(adapter.about), ())}
    if not all(np.isfinite(value).all() for value in inferred.values()):
        raise WrongError(f"has inferred {inferred}, expected finite numbers")
    return actions


def checked(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """An action, if it is one."""
    if action.shape != low.shape or not np.isfinite(action).all() or (action < low).any() or (action > high).any():
        raise WrongError(f"the action is {action}, expected {low} to {high}")
    return action


# Mutations ----------------------------------------------------------------------------------------------------------


def fields(rng: np.random.Generator, about: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
    """One field of the header: another value, away, or a new one."""
    tables = [about, about, about["sizes"]] if isinstance(about.get("sizes"), dict) else [about]
    table = tables[rng.integers(len(tables))]
    name = _any(rng, [*table, "new"])
    if rng.random() < 0.15:
        table.pop(name, None)
    elif isinstance(table.get(name), int | float) and rng.random() < 0.4:
        table[name] = table[name] * _any(rng, [-1, 0, 2, 10, 1e6, 0.5]) + _any(rng, [0, 1, -1])
    else:
        table[name] = _any(rng, ODD)


def tensors(rng: np.random.Generator, about: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
    """One tensor: resized, renamed, removed, added, of another type."""
    name = _any(rng, sorted(weights) or ["familiar"])
    old = weights.get(name, np.zeros((), np.float32))
    what = rng.integers(7)
    if what == 0:
        shape = [max(0, n + int(rng.integers(-1, 3))) for n in old.shape]
        weights[name] = np.resize(old, shape if rng.random() < 0.8 else [*shape, 1])
    elif what == 1:
        weights[name + _any(rng, ["x", "", ".weight", "\n"])] = weights.pop(name, old)
    elif what == 2:
        weights.pop(name, None)
    elif what == 3:
        weights[_any(rng, ["probe.layers.3.weight", "extra", "action.width", ""])] = old
    elif what == 4:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NaN as a whole number
            weights[name] = old.astype(_any(rng, [np.float64, np.float16, np.int32, np.bool_, np.uint8]))
    elif what == 5:
        weights[name] = np.ascontiguousarray(old.T)
    else:
        weights[name] = np.zeros([0] * int(rng.integers(1, 5)), np.float32)


def numbers(rng: np.random.Generator, about: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
    """Some numbers of one tensor: NaN, infinite, huge, zero; or all of them larger."""
    name = _any(rng, sorted(weights) or ["familiar"])
    new = np.array(weights.get(name, np.zeros(1)), np.float32).reshape(-1)
    if rng.random() < 0.3:
        with np.errstate(all="ignore"):
            new *= np.float32(10.0 ** rng.integers(-40, 39))
    elif new.size:
        new[rng.integers(new.size, size=int(rng.integers(1, 4)))] = _any(rng, NUMBERS)
    weights[name] = new.reshape(np.shape(weights.get(name, new)))


def flips(rng: np.random.Generator, about: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
    """Some bits of the tensors."""
    for _ in range(rng.integers(1, 9)):
        name = _any(rng, sorted(weights))
        raw = bytearray(weights[name].tobytes())
        if raw:
            raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
            weights[name] = np.frombuffer(bytes(raw), weights[name].dtype).reshape(weights[name].shape)


def limits(rng: np.random.Generator, about: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
    """The bounds of the action."""
    extremes = [-1e31, -1e30, -3.0, -0.1, 0, 0.1, 0.1 + 1e-12, 1e-45, 1, 1e30, 1e39, "1", None, True]
    for name in ("action_low", "action_high"):
        if rng.random() < 0.7:
            about[name] = [_any(rng, extremes) for _ in range(_any(rng, [2, 2, 2, 2, 1, 3]))]
    if rng.random() < 0.3:
        about["action_low"], about["action_high"] = about.get("action_high"), about.get("action_low")


def version(rng: np.random.Generator, about: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
    """Format and version."""
    about[_any(rng, ["version", "format"])] = _any(rng, [*ODD, 1, 2.0, 3, FORMAT.upper()])


def several(rng: np.random.Generator, about: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
    """Two to four of these."""
    for _ in range(rng.integers(2, 5)):
        _any(rng, [fields, tensors, numbers, flips, limits])(rng, about, weights)


def text(rng: np.random.Generator, given: str) -> str:
    """The header's text: nesting, huge numbers, fields that are there twice, other letters."""
    deep = int(rng.integers(10, 100_000))
    values = ["[" * deep + "]" * deep, '{"a":' * deep + "1" + "}" * deep, "[" * deep, "9" * deep, "1e999", "-1e999"]
    values += ["NaN", "Infinity", "1E400", "-0", '"\\ud800"', "3,", '"observation": 3', "{}", "1.0", "0x3"]
    what = rng.integers(4)
    if what == 0:
        name = _any(rng, ["observation", "family", "seed", "sizes", "new", "version", "action_low", "measured"])
        return given[:-1] + f', "{name}": {_any(rng, values)}}}'
    if what == 1:
        return _any(rng, values)
    if what == 2:
        place = int(rng.integers(len(given)))
        return given[:place] + _any(rng, values)[:200] + given[place + int(rng.integers(3)) :]
    place = int(rng.integers(len(given)))
    return given[:place] + chr(int(rng.integers(1, 0xD7FF))) + given[place + 1 :]


def header(rng: np.random.Generator, file: bytes) -> bytes:
    """The header of the safetensors format: lengths, offsets, shapes, types."""
    (length,) = struct.unpack("<Q", file[:8])
    if rng.random() < 0.2:
        return struct.pack("<Q", _any(rng, [0, 1, length - 1, length + 8, 2**32, 2**63, 2**64 - 1])) + file[8:]
    entries = json.loads(file[8 : 8 + length])
    name = _any(rng, sorted(entries))
    entry = entries[name]
    if name == "__metadata__" or rng.random() < 0.1:
        entries[name] = _any(rng, [*ODD[:20], {}, {"about": 3}, {"about": None}, {"about": "{}"}])
    else:
        field = _any(rng, ["dtype", "shape", "data_offsets"])
        types = ["F32", "F64", "F16", "BF16", "I32", "F8_E4M3", "F4", "C64", "BOOL", "U64", "f32", "", 3]
        sizes = [[], [0], [2**63], [2**32, 2**32], [-1], [1, 0], entry["shape"][::-1], [0, 2**62, 8], "3"]
        ends = [[0, 0], [0, 4], [4, 0], [2**63, 2**63 + 4], entry["data_offsets"][::-1], [-4, 0], [0]]
        entry[field] = _any(rng, {"dtype": types, "shape": sizes, "data_offsets": ends}[field])
    with contextlib.suppress(KeyError):
        if rng.random() < 0.1:
            entries[name + "2"] = entries.pop(name)
    new = json.dumps(entries).replace("NaN", "0").encode()
    return struct.pack("<Q", len(new)) + new + file[8 + length :]


def bits(rng: np.random.Generator, file: bytes) -> bytes:
    """Some bits of the whole file."""
    changed = bytearray(file)
    for _ in range(rng.integers(1, 9)):
        changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncated(rng: np.random.Generator, file: bytes) -> bytes:
    """The beginning or the end."""
    cut = int(rng.integers(len(file)))
    return file[:cut] if rng.random() < 0.8 else file[cut:]


def inserted(rng: np.random.Generator, file: bytes) -> bytes:
    """Bytes more, fewer, twice, or others."""
    begin, size = int(rng.integers(len(file) + 1)), int(rng.integers(1, 64))
    new = [rng.bytes(size), bytes(size), file[begin : begin + size] * 2, b""][rng.integers(4)]
    return file[:begin] + new + file[begin + _any(rng, [0, size]) :]


EDITS = {
    "header fields": fields,
    "tensors": tensors,
    "numbers": numbers,
    "bits of tensors": flips,
    "bounds": limits,
    "version": version,
    "several": several,
}
RAW = {"bits": bits, "truncated": truncated, "inserted": inserted, "safetensors header": header}


def _signed_text(changed: str, weights: dict[str, np.ndarray]) -> str:
    """A header's text with the checksum that belongs to it, where it can be read at all."""
    try:
        about = json.loads(changed)
        about.pop("sha256", None)
        return changed.rstrip()[:-1] + f', "sha256": "{sign(about, weights)}"}}'
    except (ValueError, RecursionError, AttributeError, TypeError):
        return changed


def _file(text: str, weights: dict[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save

    return save(weights, metadata={"about": text})


def mutated(layout: str, kind: str, signed: bool, rng: np.random.Generator) -> bytes:
    """A file that was attacked."""
    about, weights = tiny_model(layout)
    if kind in RAW:
        return RAW[kind](rng, pack(about, weights))
    if kind == "header text":
        if signed:
            return _file(_signed_text(text(rng, json.dumps(about)), weights), weights)
        return _file(text(rng, json.dumps({**about, "sha256": sign(about, weights)})), weights)
    old = sign(about, weights)
    EDITS[kind](rng, about, weights)
    about["sha256"] = sign(about, weights) if signed else old
    return _file(json.dumps(about), weights)


# Callers ------------------------------------------------------------------------------------------------------------


class _Raises:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise OSError("no array")


def _nested(depth: int) -> list[Any]:
    made: list[Any] = [1.0]
    for _ in range(depth):
        made = [made]
    return made


def _itself() -> list[Any]:
    made: list[Any] = [0.0, 0.0]
    made.append(made)
    return made


FINE: list[Callable[[np.ndarray], Any]] = [
    lambda x: x,
    lambda x: x.astype(np.float64),
    lambda x: x.tolist(),
    lambda x: tuple(x),
    lambda x: np.repeat(x, 2)[::2],
    lambda x: x[::-1].copy()[::-1],
    lambda x: x.astype(">f8"),
    lambda x: x.astype(np.longdouble),
    lambda x: np.rint(np.clip(x, -9, 9)).astype(np.int8),
    lambda x: x > 0,
    lambda x: memoryview(x),
]
NOT_FINITE: list[Callable[[np.ndarray], Any]] = [
    lambda x: np.where(np.arange(x.size) == 1, np.nan, x),
    lambda x: [float("inf"), *x[1:].tolist()],
    lambda x: np.full(x.size, -np.inf),
    lambda x: np.full(x.size, 1e300),
]
REFUSED: list[Callable[[np.ndarray], Any]] = [
    lambda x: None,
    lambda x: "0.1 0.2 0.3",
    lambda x: ["0.1", "0.2", "0.3"],
    lambda x: np.array(["1", "2", "3"]),
    lambda x: b"123",
    lambda x: x.astype(np.complex64),
    lambda x: [1j, 0.0, 0.0],
    lambda x: {"observation": x},
    lambda x: {0: 1.0, 1: 2.0, 2: 3.0},
    lambda x: [x, 1.0, 2.0],
    lambda x: [[1.0], [2.0, 3.0], []],
    lambda x: x.astype(object),
    lambda x: [None, 0.0, 0.0],
    lambda x: [10**400, 0, 0],
    lambda x: np.ma.masked_array(x, [True, False, False]),
    lambda x: x[:2],
    lambda x: np.concatenate([x, x]),
    lambda x: x[None],
    lambda x: x[:, None],
    lambda x: 3.0,
    lambda x: [],
    lambda x: np.zeros((3, 0)),
    lambda x: np.zeros(3, [("a", "f4")]),
    lambda x: np.zeros(3, "M8[s]"),
    lambda x: {1.0, 2.0, 3.0},
    lambda x: iter(x),
    lambda x: (y for y in x),
    lambda x: _nested(100),
    lambda x: _nested(10_000),
    lambda x: _itself(),
    lambda x: range(10**6),
    lambda x: _Raises(),
    lambda x: Adapter,
    lambda x: lambda: x,
]
PATHS: list[Any] = [None, 3, 1.5, b"file", [], {}, "", "\0", "x" * 5000, "/", "/dev/null", "/dev/zero", "~", Path("no")]


def call(adapter: Adapter, rng: np.random.Generator) -> str:
    """An episode with a caller who does something odd in it, several times."""
    low, high = (np.array(adapter.about[name], float) for name in ("action_low", "action_high"))
    adapter.reset(np.zeros(3))
    ended = "acted"
    for _ in range(8):
        x = rng.normal(size=3).astype(np.float32)
        kinds, allowed = [(FINE, True), (NOT_FINITE, adapter._hold), (REFUSED, False)][rng.integers(3)]
        number = int(rng.integers(len(kinds)))
        odd = kinds[number](x)
        use = adapter.reset if rng.random() < 0.1 else adapter.act
        try:
            action = use(odd)
            if not allowed:
                raise WrongError(f"{type(odd).__name__} number {number} was accepted")
            if action is not None:
                checked(action, low, high)[:] = np.nan  # it is the caller's
        except AdapterError:
            if allowed:
                raise WrongError(f"{type(odd).__name__} number {number} was refused") from None
            ended = "refused"
        if isinstance(odd, np.ndarray) and odd.flags.writeable and odd.dtype.kind == "f":
            odd[...] = 1e9  # so is this
    return ended


# The campaign -------------------------------------------------------------------------------------------------------

CLASSES = [
    *RAW,
    "header text",
    "header text, re-signed",
    *(f"{name}{signed}" for name in EDITS for signed in ("", ", re-signed")),
    "callers",
    "callers, holding",
    "paths",
]


class Attacks:
    """All attacks of a seed, by number; the layouts take turns, with one attack of every class at a time."""

    def __init__(self, folder: Path, seed: int):
        self._file, self._seed = folder / "model.pdvf", seed
        self._original: dict[str, list[np.ndarray]] = {}
        self._adapters: dict[tuple[str, bool], Adapter] = {}
        for layout in LAYOUTS:
            self._file.write_bytes(pack(*tiny_model(layout)))
            self._original[layout] = play(self._file)
            for hold in (False, True):
                self._adapters[layout, hold] = Adapter.load(self._file, hold_last_action=hold)

    def run(self, number: int) -> str:
        """How attack `number` ended: 'refused' or 'acted'. Raises where it failed."""
        turn, place = divmod(number, len(CLASSES))
        layout, kind = list(LAYOUTS)[turn % len(LAYOUTS)], CLASSES[place]
        rng = np.random.default_rng([self._seed, number])
        if kind.startswith("callers"):
            return call(self._adapters[layout, kind.endswith("holding")], rng)
        try:
            if kind == "paths":
                Adapter.load(_any(rng, PATHS))
                raise WrongError("a path that is none was accepted")
            name, _, signed = kind.partition(", ")
            file = mutated(layout, name, bool(signed), rng)
            self._file.write_bytes(file)
            actions = play(self._file)
        except AdapterError:
            return "refused"
        if not signed and not all(map(np.array_equal, actions, self._original[layout])):
            raise WrongError("an altered file that was not signed anew acts in another way")
        return "acted"


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def hang(*_: Any) -> None:
        raise Hang(f"longer than {LIMIT:g} s")

    handler, timer = signal.signal(signal.SIGALRM, hang), signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # a test's own limit


def campaign(seconds: float, seed: int, attacks: int | None = None) -> dict[str, dict[str, Any]]:
    """How the attacks ended, by class, in so many seconds or, if given, so many attacks.

    Campaigns of a minute and more also play a million steps and, with atheris, fuzz for a fifth of the time.
    """
    began = time.monotonic()
    found = {name: _row() for name in CLASSES}
    if attacks is None and seconds >= 60:
        found["a million steps"] = _million_steps()
        if importlib.util.find_spec("atheris") is not None:
            found["coverage-guided"] = coverage_guided(seconds / 5, seed)
    at_first = _largest_size()
    number = 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        all_attacks = Attacks(Path(folder), seed)
        while number < attacks if attacks is not None else time.monotonic() - began < seconds:
            row = found[CLASSES[number % len(CLASSES)]]
            row["tried"] += 1
            try:
                with _limited():
                    row[all_attacks.run(number)] += 1
            except (Exception, Hang) as error:
                row["failed"] += 1
                row["examples"] = [*row["examples"], f"#{number} {type(error).__name__}: {str(error)[:200]}"][:5]
            number += 1
    grown = _largest_size() - at_first
    found["memory of all attacks"] = _row(grown <= MEMORY, f"{grown:.0f} MB more, at most {MEMORY:g}")
    return found


def _row(acted: bool | None = None, example: str = "") -> dict[str, Any]:
    ended = {"tried": int(acted is not None), "refused": 0, "acted": int(acted is True), "failed": int(acted is False)}
    return ended | {"examples": [example] if example else []}


def _any(rng: np.random.Generator, choices: list[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _largest_size() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _child(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.modules["pdvf"].__path__[0]).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)


def _million_steps() -> dict[str, Any]:
    """Resident memory from load to the end of a million steps in 20,000 episodes, in a process of its own."""
    ended = _child("--steps", "1000000")
    try:
        grown = float(ended.stdout)
    except ValueError:
        return _row(False, ended.stderr[-200:])
    return _row(grown <= LEAK, f"{grown:.2f} MB more, at most {LEAK:g}")


def steps(count: int) -> float:
    """MB of resident memory that so many steps add, less what is mapped from files: the kernel may drop that.

    Each layout makes an equal share of them.
    """

    def resident() -> float:
        (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
        return int(line.split()[1]) / 1024

    adapters = []
    with tempfile.TemporaryDirectory() as folder:
        for layout in LAYOUTS:
            file = Path(folder) / f"{layout}.pdvf"
            file.write_bytes(pack(*tiny_model(layout)))
            adapters.append(Adapter.load(file))
    observation, rng = np.zeros(3, np.float32), np.random.default_rng(0)
    before = resident()
    for adapter in adapters:
        for t in range(count // len(adapters)):
            rng.standard_normal(out=observation, dtype=np.float32)
            if t % 50 == 0:
                adapter.reset(observation)
            adapter.act(observation)
    return resident() - before


def coverage_guided(seconds: float, seed: int) -> dict[str, Any]:
    """Inputs that atheris makes: whole files, headers and tensors, the last two signed anew."""
    with tempfile.TemporaryDirectory() as folder:
        ended = _child("--seconds", str(int(seconds)), "--seed", str(seed), PDVF_COVERAGE=folder)
        counts = Path(folder) / "counts.json"
        row = {**_row(), **(json.loads(counts.read_text()) if counts.is_file() else {})}
    if ended.returncode != 0 or not row["tried"]:
        lines = [line for line in (ended.stdout + ended.stderr).splitlines() if "Error" in line or "ERROR" in line]
        row |= {"failed": 1, "examples": [" | ".join(lines[:2])[:300] or ended.stderr[-300:]]}
    return row


def fuzz(folder: Path, seconds: int, seed: int) -> None:
    """Does not return: libFuzzer ends the process, with an error where an input made one.

    The first byte of an input says what the rest is: a whole file, the text of a header or the tensors of a layout.
    """
    models = [tiny_model(layout) for layout in LAYOUTS]
    corpus = folder / "corpus"
    corpus.mkdir()
    largest = 0
    for i, (about, weights) in enumerate(models):
        starts = (pack(about, weights), json.dumps(about).encode(), _raw(weights))
        largest = max(largest, *map(len, starts))
        for j, start in enumerate(starts):
            (corpus / str(3 * i + j)).write_bytes(bytes([3 * i + j]) + start)
    file, counts = folder / "model.pdvf", _row()
    warnings.simplefilter("error")

    def one(data: bytes) -> None:
        which, kind = divmod(data[0] if data else 0, 3)
        (about, weights), data = models[which % len(models)], data[1:]
        if kind == 1:
            data = _file(_signed_text(data.decode(errors="replace"), weights), weights)
        elif kind == 2:
            raw = _raw(weights)
            flat = np.frombuffer((data + raw[len(data) :])[: len(raw)], np.float32)
            ends = np.cumsum([weights[name].size for name in weights])[:-1]
            parts = zip(weights, np.split(flat, ends), strict=True)
            data = pack(about, {name: part.reshape(weights[name].shape) for name, part in parts})
        file.write_bytes(data)
        try:
            play(file)
            counts["acted"] += 1
        except AdapterError:
            counts["refused"] += 1
        counts["tried"] += 1
        if counts["tried"] % 100 == 0:
            (folder / "counts.json").write_text(json.dumps(counts))

    options = [f"-max_total_time={seconds}", f"-seed={seed + 1}", f"-timeout={LIMIT:g}", "-rss_limit_mb=2048"]
    options += [f"-max_len={largest + 1000}", f"-artifact_prefix={folder}/", str(corpus)]
    atheris.Setup([sys.argv[0], *options], one)
    atheris.Fuzz()


def _raw(weights: dict[str, np.ndarray]) -> bytes:
    return b"".join(weights[name].tobytes() for name in weights)


def table(found: dict[str, dict[str, Any]]) -> str:
    """For people."""
    lines = [f"{'attack':32} {'tried':>8} {'refused':>8} {'acted':>8} {'failed':>8}"]
    total = {key: sum(row[key] for row in found.values()) for key in ("tried", "refused", "acted", "failed")}
    for name, row in [*found.items(), ("all", total)]:
        lines.append(f"{name:32} {row['tried']:8d} {row['refused']:8d} {row['acted']:8d} {row['failed']:8d}")
    lines += [f"{name}: {example}" for name, row in found.items() for example in row["examples"]]
    return "\n".join(lines)


def main() -> int:
    """One campaign, or one of its attacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attacks", type=int, help="so many of them, however long it takes")
    parser.add_argument("--replay", type=int, metavar="I", help="attack number I alone")
    parser.add_argument("--steps", type=int, help="MB that so many steps add to the memory")
    given = parser.parse_args()
    if os.environ.get("PDVF_COVERAGE"):
        fuzz(Path(os.environ["PDVF_COVERAGE"]), int(given.seconds), given.seed)
    if given.steps is not None:
        print(steps(given.steps))
        return 0
    if given.replay is not None:
        warnings.simplefilter("error")
        with tempfile.TemporaryDirectory() as folder, _limited():
            print(CLASSES[given.replay % len(CLASSES)], Attacks(Path(folder), given.seed).run(given.replay))
        return 0
    found = campaign(given.seconds, given.seed, given.attacks)
    print(table(found))
    if importlib.util.find_spec("atheris") is None:
        print("not coverage-guided: atheris is not installed; `pip install 'pdvf[campaign]'`")
    return int(any(row["failed"] for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
