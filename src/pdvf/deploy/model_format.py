"""The file of a trained model: what it holds, and the checks that it passes before anything is computed with it.

A safetensors file with float32 tensors and one entry of metadata, `about`: JSON with the fields of `FIELDS`, those of
its `layout` (`LAYOUTS`; that of PD-VF where none is named), the model card, and `sha256` over everything.
`expected_shapes` says which tensors belong to an `about`. NumPy and safetensors only.

The limits below are far from any trained model. They are such that nothing overflows in `pdvf.deploy.runtime`,
whatever the observation: a file that is accepted gives finite actions inside its bounds.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import reprlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FORMAT = "pdvf-adapter"
VERSION = 2
MAX_BYTES = 2**30
MAX_ABOUT = 2**20  # characters
MAX_SIZE = 4096  # of an observation, an action or a layer
MAX_WEIGHT = 1e4
CARD_DEPTH = 4
Weights = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


class AdapterError(ValueError):
    """A file or an observation that cannot be used; the message says what was given and what was expected."""


Check = tuple[Callable[[Any], bool], str]
"""Whether a field is right, and what is expected."""


def _whole(low: int, high: int) -> Check:
    return lambda x: type(x) is int and low <= x <= high, f"a whole number from {low} to {high}"


def _number(low: float, high: float) -> Check:
    return lambda x: type(x) in (int, float) and low <= x <= high, f"a number from {low:g} to {high:g}"


def _or_none(check: Check) -> Check:
    return lambda x: x is None or check[0](x), f"{check[1]}, or null"


def _list(check: Check) -> Check:
    return lambda x: isinstance(x, list) and all(map(check[0], x)), f"a list, each {check[1]}"


FIELDS: dict[str, Check] = {
    "family": (lambda x: isinstance(x, str) and 0 < len(x) <= 200 and x.isprintable(), "a name"),
    "observation": _whole(1, MAX_SIZE),
    "action": _whole(1, MAX_SIZE),
    "action_low": _list(_number(-1e30, 1e30)),
    "action_high": _list(_number(-1e30, 1e30)),
    "control_step": _or_none(_number(1e-9, 1e9)),  # in seconds
    "probe_steps": _whole(1, 1000),
}
LARGEST_SIZES = {"z_pi": 64, "code": 64, "members": 1024, "policies": 1024}
"""Of parts of a model; any other is at most `MAX_SIZE`."""


class Layout(NamedTuple):
    """What a file of one kind has besides `FIELDS`; several methods may share it."""

    fields: dict[str, Check]
    sizes: tuple[str, ...]
    """Of parts."""
    shapes: Callable[..., Shapes]
    """Of tensors, from the sizes o and a of observation and action and those of parts, by name."""


VALUE_FIELDS: dict[str, Check] = {
    "anchor": _number(0, 1),
    "anchor_width": _number(1e-6, 1e6),
    "anchors": _whole(1, 8),
}
BELIEF_FIELDS: dict[str, Check] = {
    "prior_std": _number(1e-3, 1e3),
    "residual_edge": _number(1e-3, 1e3),
    "largest_mean": _number(1e-3, 1e6),
    "familiar_mean": _number(1e-3, 1e6),
    "farthest_input": _number(1e-3, 1e6),
    "outlier": _number(1e-3, 1e6),
    "log_std_low": _number(-20, 20),
    "log_std_high": _number(-20, 20),
    "novelty_threshold": _or_none(_number(1e-3, 1e6)),
}
RANGES: Check = (
    lambda x: isinstance(x, dict) and all(isinstance(ends, list) and len(ends) == 2 for ends in x.values()),
    "a table of pairs",
)
CARD: dict[str, Check] = {
    "trained_on": _or_none((lambda x: isinstance(x, dict) and _or_none(RANGES)[0](x.get("contexts")), "a table")),
    "results": _or_none(_list((lambda x: isinstance(x, dict), "a table"))),
    "limits": _or_none(_list((lambda x: isinstance(x, str), "a sentence"))),
}
"""Fields of the model card that are more than text; a file may have none of them."""


def layout_name(about: Mapping[str, Any]) -> str:
    """That of a header; files of before there were several name none."""
    return about.get("layout", "belief" if about.get("method") == "pd-vf-plus" else "value")


def expected_shapes(about: Mapping[str, Any]) -> Shapes:
    """Name and shape of every tensor."""
    shapes = LAYOUTS[layout_name(about)].shapes
    return shapes(o=about["observation"], a=about["action"], **about["sizes"])


def _probing_shapes(o: int, a: int, z_d: int, probe: int, encoder: int) -> Shapes:
    """Of what probes and infers z_d."""
    encoding: Shapes = {
        "encoder.element": (encoder, 2 * o + a),
        **{f"encoder.{name}": (encoder, encoder) for name in ("query", "key", "value", "output")},
        "encoder.feed_forward.0": (encoder, encoder),
        "encoder.feed_forward.1": (encoder, encoder),
        "encoder.embedding": (z_d, encoder),
    }
    return {
        **_layers("probe", o, probe, probe, a),
        **_weights_and_biases(encoding),
        **{f"encoder.norms.{i}.{field}": (encoder,) for i in range(2) for field in ("weight", "bias")},
        **_scalers(o, "probe.observation", "dynamics.observation", "dynamics.change"),
    }


def _value_shapes(
    o: int, a: int, z_pi: int, environments: int, members: int, decoder: int, value: int, **probing: int
) -> Shapes:
    z_d = probing["z_d"]
    value_layers: Shapes = {
        "value.first": (members, value, o + z_d),
        "value.second": (members, value, value),
        "value.third": (members, z_pi**2, value),
    }
    return {
        **_probing_shapes(o, a, **probing),
        **_layers("decoder", o + z_pi * (z_pi + 1) // 2, decoder, decoder, a),
        **_weights_and_biases(value_layers),
        **_scalers(o, "decoder.observation", "value.observation"),
        "scale.low": (environments,),
        "scale.high": (environments,),
        "scale.power": (),
        "train_z_d": (environments, z_d),
        "familiar": (),
    }


def _policy_shapes(o: int, a: int, actor: int, beside: int = 0) -> Shapes:
    """Of a policy that sees `beside` numbers beside the observation."""
    return _layers("actor", o + beside, actor, actor, a) | _scalers(o + beside, "actor.observation")


def _conditioned_shapes(o: int, a: int, actor: int, **probing: int) -> Shapes:
    return _probing_shapes(o, a, **probing) | _policy_shapes(o, a, actor, probing["z_d"])


def _nearest_shapes(o: int, a: int, actor: int, policies: int, **probing: int) -> Shapes:
    each = {name: (policies, *shape) for name, shape in _policy_shapes(o, a, actor).items()}
    return _probing_shapes(o, a, **probing) | each | {"centres": (policies, probing["z_d"])}


def _history_shapes(o: int, a: int, actor: int, estimator: int, feature: int) -> Shapes:
    return {
        **_policy_shapes(o, a, actor, feature),
        **_layers("estimator.each", 2 * o + a, estimator, estimator),
        **_layers("estimator.together", estimator + 1, estimator, feature),
        **_scalers(o, "estimator.observation", "estimator.change"),
    }


def _belief_shapes(o: int, a: int, actor: int, code: int, model: int) -> Shapes:
    return {
        **_policy_shapes(o, a, actor, 2 * code),
        **_layers("model", o + a, model, model, o * (2 + code)),
        **_scalers(o, "model.observation", "model.change"),
        "model.origin": (code,),
        "model.frame": (code, code),
        "model.temperature": (),
    }


def _layers(name: str, *sizes: int) -> Shapes:
    """Linear layers one after the other."""
    shapes = {f"{name}.layers.{i}": (after, before) for i, (before, after) in enumerate(pairwise(sizes))}
    return _weights_and_biases(shapes)


def _scalers(size: int, *names: str) -> Shapes:
    return {f"{name}.{field}": (size,) for name in names for field in ("centre", "width")}


def _weights_and_biases(layers: Shapes) -> Shapes:
    weights = {f"{name}.weight": shape for name, shape in layers.items()}
    return weights | {f"{name}.bias": shape[:-1] for name, shape in layers.items()}


PROBING = ("z_d", "probe", "encoder")
LAYOUTS = {
    "value": Layout(VALUE_FIELDS, (*PROBING, "z_pi", "environments", "members", "decoder", "value"), _value_shapes),
    "belief": Layout(BELIEF_FIELDS, ("code", "actor", "model"), _belief_shapes),
    "policy": Layout({}, ("actor",), _policy_shapes),
    "conditioned": Layout({}, (*PROBING, "actor"), _conditioned_shapes),
    "nearest": Layout({}, (*PROBING, "actor", "policies"), _nearest_shapes),
    "history": Layout({"history": _whole(1, 1000)}, ("actor", "estimator", "feature"), _history_shapes),
}


def bounds(about: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest action [a]: the float32 numbers nearest to the bounds that are not outside them."""
    low, high = np.array(about["action_low"], np.float64), np.array(about["action_high"], np.float64)
    least, most = low.astype(np.float32), high.astype(np.float32)
    least = np.where(least < low, np.nextafter(least, np.float32(np.inf)), least)
    most = np.where(most > high, np.nextafter(most, np.float32(-np.inf)), most)
    return least, most


def check(about: Any, weights: Weights) -> None:
    """Raises AdapterError unless the runtime can act with these."""
    check_about(about)
    check_weights(about, weights)


def check_about(about: Any) -> None:
    """Every field of a header: its type and range."""
    known = about if isinstance(about, dict) else {}
    if known.get("format") != FORMAT or not _whole(VERSION, VERSION)[0](known.get("version")):
        given = f"format {reprlib.repr(known.get('format'))} version {reprlib.repr(known.get('version'))}"
        raise AdapterError(f"has {given}, expected {FORMAT!r} version {VERSION}: export it again")
    name = layout_name(about)
    _require(isinstance(name, str) and name in LAYOUTS, "layout", name, f"one of: {', '.join(LAYOUTS)}")
    own = LAYOUTS[name]
    fields = FIELDS | own.fields
    _require_fields(about, fields)
    sizes = about.get("sizes")
    is_table = isinstance(sizes, dict) and sizes.keys() == set(own.sizes)
    _require(is_table, "sizes", sizes, "a table of the sizes of all parts")
    _require_fields(sizes, {name: _whole(1, LARGEST_SIZES.get(name, MAX_SIZE)) for name in own.sizes}, "sizes.")
    size = about["action"]
    for name in ("action_low", "action_high"):
        _require(len(about[name]) == size, name, about[name], f"{size} numbers, one for each component of an action")
    low, high = bounds(about)
    _require(bool((low < high).all()), "action_low", about["action_low"], f"less than {about['action_high']}")
    measured = about.get("measured", {})
    is_table = isinstance(measured, dict) and all(map(_number(-1e30, 1e30)[0], measured.values()))
    _require(is_table, "measured", measured, "a table of returns")
    card = about.get("card", {})
    is_card = isinstance(card, dict) and _is_plain(card, CARD_DEPTH)
    _require(is_card, "card", card, f"a table of text and finite numbers, at most {CARD_DEPTH} deep")
    _require_fields(card, CARD, "card.")
    for name in sorted(about.keys() - fields.keys() - {"card", "measured", "sizes"}):
        _require(_is_plain(about[name], 0), reprlib.repr(name), about[name], "text or a finite number")


def check_weights(about: Mapping[str, Any], weights: Weights) -> None:
    """Names, shapes, types and range of all tensors, for a header that has been checked."""
    expected = expected_shapes(about)
    if weights.keys() != expected.keys():
        missing, unknown = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
        raise AdapterError(f"lacks the tensors {reprlib.repr(missing)} and has {reprlib.repr(unknown)} besides")
    for name, shape in expected.items():
        given = weights[name]
        if given.shape != shape or given.dtype != np.float32:
            raise AdapterError(f"has {name} of shape {given.shape} {given.dtype}, expected {shape} float32")
        low, high = _range(name)
        if not (np.all(given >= low) and np.all(given <= high)):  # so that NaN is refused
            raise AdapterError(f"has {name} that is not finite or out of range, expected {low:g} to {high:g}")


def sign(about: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the header, less the checksum in it, and all tensors by name."""
    signed = {name: value for name, value in about.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(signed, sort_keys=True).encode())
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"\0{name}\0{array.dtype}{weights[name].shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def pack(about: Mapping[str, Any], weights: Weights) -> bytes:
    """The file, signed and not checked."""
    from safetensors.numpy import save

    return save(weights, metadata={"about": json.dumps({**about, "sha256": sign(about, weights)})})


def read(file: str | os.PathLike[str]) -> tuple[dict[str, Any], Weights]:
    """Header and tensors of a file, checked."""
    from safetensors import SafetensorError, safe_open

    if not isinstance(file, str | os.PathLike):
        raise AdapterError(f"the file is given as {type(file).__name__}, expected a path")
    path = Path(file)
    try:
        if not path.is_file():
            raise AdapterError("is not there, expected a file made by `pdvf export RUN FILE`")
        if path.stat().st_size > MAX_BYTES:
            raise AdapterError(f"has {path.stat().st_size} bytes, expected at most {MAX_BYTES}: export it again")
        with safe_open(str(path), framework="numpy") as opened:
            about = _parse((opened.metadata() or {}).get("about", "{}"))
            check_about(about)
            names = opened.keys()
            other = {name: kind for name in names if (kind := opened.get_slice(name).get_dtype()) != "F32"}
            if other:
                raise AdapterError(f"has tensors of another type: {reprlib.repr(other)}, expected float32")
            weights = {name: opened.get_tensor(name) for name in names}
        check_weights(about, weights)
        if about.get("sha256") != sign(about, weights):
            raise AdapterError("was altered: its checksum is another one; copy or export it again")
    except AdapterError as error:
        raise AdapterError(f"{path} {error}") from None
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{path} cannot be read ({error}), expected a file made by `pdvf export`") from error
    return about, weights


def _parse(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a field that is there twice")
        return dict(pairs)

    if len(text) > MAX_ABOUT:
        raise AdapterError(f"has a header of {len(text)} characters, expected at most {MAX_ABOUT}: export it again")
    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else error
        raise AdapterError(f"cannot be read: its header is no JSON of ours ({reason}); export it again") from None


def _is_plain(value: Any, depth: int) -> bool:
    """Whether a value of a header is text or a finite number, or has no others in it down to a depth."""
    if isinstance(value, dict | list):
        return depth > 0 and all(
            _is_plain(x, depth - 1) for x in (value.values() if isinstance(value, dict) else value)
        )
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


def _require(holds: bool, name: str, given: Any, expected: str) -> None:
    if not holds:
        raise AdapterError(f"has {name} = {reprlib.repr(given)}, expected {expected}: export it again")


def _require_fields(table: Any, checks: Mapping[str, Check], prefix: str = "") -> None:
    for name, (is_right, expected) in checks.items():
        _require(is_right(table.get(name)), f"{prefix}{name}", table.get(name), expected)


def _range(name: str) -> tuple[float, float]:
    """Least and greatest number in a tensor."""
    largest = float(np.finfo(np.float32).max)
    if name.endswith(".width"):  # they are divided by, as is `familiar`
        return float(np.finfo(np.float32).tiny), largest
    if name.endswith(".centre") or name in ("scale.low", "scale.high"):
        return -largest, largest
    if name in ("model.origin", "model.frame"):  # codes have any scale
        return -1e9, 1e9
    if name == "model.temperature":
        return 1e-3, 1e6
    if name == "scale.power":
        return 0.1, 100.0
    return (1e-6, MAX_WEIGHT) if name == "familiar" else (-MAX_WEIGHT, MAX_WEIGHT)
