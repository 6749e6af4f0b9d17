"""A trained agent as one file for `pdvf.deploy.runtime`, which needs NumPy and safetensors only.

The kind of agent decides the layout of the file (`AGENTS`), so several methods share one, a method of a user's own
among them. An agent without a layout leaves as ONNX (`pdvf.deploy.onnx_graph`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pdvf.adapt import belief, model
from pdvf.core.validation import ConfigError
from pdvf.deploy.model_format import FORMAT, LAYOUTS, VERSION, AdapterError, Weights, check, expected_shapes, pack
from pdvf.experiment.cost import environment_steps
from pdvf.experiment.files import read_json
from pdvf.experiment.store import RunStore
from pdvf.families.base import Family
from pdvf.methods import METHODS, Method
from pdvf.methods.adaptive import BeliefAgent
from pdvf.methods.kmeans import NearestPolicy
from pdvf.methods.pdvf import ValueFunction
from pdvf.methods.ppo_all import Unconditioned
from pdvf.methods.ppo_dyn import DynamicsConditioned
from pdvf.methods.rma import OnlineAgent
from pdvf.paper.adapter import ANCHORS, Adapter
from pdvf.paper.pipeline import Problem
from pdvf.paper.prober import Body
from pdvf.reports.data import read_returns
from pdvf.reports.statistics import summarise

UNSTATED = "not stated"
UNMEASURED = "It was trained and measured in simulation only."
NO_ADAPTATION = "It cannot tell whether the dynamics are unlike those of its training."
FAMILIAR = "Dynamics outside the ranges above are extrapolation: watch out_of_distribution."
ONE_MODEL = "Returns are of this one model; another seed gives others."


def export(agent: Any, family: Family, about: dict[str, Any]) -> bytes:
    """The file of one model (no leading axis), with everything the runtime has to know."""
    box = family.action
    if type(agent) not in AGENTS:
        raise ConfigError(
            f"{about.get('method', type(agent).__name__)} has no layout for NumPy (it needs rewards, or is your own): "
            f"export it as FILE.onnx, or one of: {', '.join(NUMPY)}"
        )
    layout, parts, fields = AGENTS[type(agent)]
    arrays = _named_arrays(parts(agent))
    described = {
        "format": FORMAT,
        "version": VERSION,
        "layout": layout,
        "family": family.name,
        "observation": family.observation.size,
        "action": box.size,
        "action_low": np.asarray(box.low, float).tolist(),
        "action_high": np.asarray(box.high, float).tolist(),
        "control_step": getattr(family, "control_step", None),
        "probe_steps": family.probe_steps,
        **fields(agent),
        "sizes": {name: _size(name, arrays) for name in LAYOUTS[layout].sizes},
        **about,
    }
    arrays = {name: arrays[name] for name in expected_shapes(described) if name in arrays}
    try:
        check(described, arrays)
    except AdapterError as error:
        raise ConfigError(f"the model cannot be exported: it {error}") from error
    return pack(described, arrays)


def value_fields(adapter: Adapter) -> dict[str, Any]:
    """The part of the header that PD-VF alone has."""
    return {"anchor": adapter.anchor, "anchor_width": adapter.anchor_width, "anchors": ANCHORS}


def belief_fields(agent: BeliefAgent) -> dict[str, Any]:
    """The part of the header that PD-VF-plus alone has."""
    return {
        "prior_std": belief.PRIOR_STD,
        "residual_edge": belief.EDGE,
        "largest_mean": belief.LARGEST,
        "farthest_input": model.FARTHEST,
        "outlier": model.OUTLIER,
        "log_std_low": model.LOG_STD[0],
        "log_std_high": model.LOG_STD[1],
        "familiar_mean": belief.FAMILIAR,
        "novelty_threshold": float(agent.model.novelty_threshold),
    }


SIZES = {
    "z_d": ("encoder.embedding.bias", -1),
    "probe": ("probe.layers.0.bias", -1),
    "encoder": ("encoder.element.bias", -1),
    "environments": ("train_z_d", 0),
    "members": ("value.second.bias", 0),
    "decoder": ("decoder.layers.0.bias", -1),
    "value": ("value.second.bias", -1),
    "code": ("model.origin", -1),
    "actor": ("actor.layers.0.bias", -1),
    "model": ("model.layers.0.bias", -1),
    "policies": ("centres", 0),
    "estimator": ("estimator.each.layers.0.bias", -1),
    "feature": ("estimator.together.layers.1.bias", -1),
}
"""A tensor and its axis that are as large as a part of a model."""


def _size(name: str, arrays: Weights) -> int:
    if name == "z_pi":  # W ends with the e * e numbers of A
        return math.isqrt(arrays["value.third.bias"].shape[-1])
    tensor, axis = SIZES[name]
    return arrays[tensor].shape[axis]


def make_card(store: RunStore, problem: Problem, method: Method, model: int, licence: str) -> dict[str, Any]:
    """The model card, as plain data: what a model was trained on, what it measured, its limits and licence."""
    contexts = np.asarray(problem.contexts, float)
    ends = np.stack([contexts.min(axis=0), contexts.max(axis=0)], axis=1).tolist()
    adapts = method.adapting or bool(method.variant_of)  # its file tells how far the dynamics are from training
    return {
        "method": method.name,
        "text": method.text,
        "trained_on": {
            "environments": len(contexts),
            "contexts": dict(zip(problem.engine.family.context_names, ends, strict=True)),
            "environment_steps": environment_steps(store).get(method.name),
            "engine": problem.config.engine,
        },
        "results": _results(store, model, method.name),
        "limits": [UNMEASURED, FAMILIAR if adapts else NO_ADAPTATION, ONE_MODEL],
        "licence": licence,
        "command": read_json(store.folder / "environment.json", "delete it").get("command"),
    }


def _results(store: RunStore, model: int, method: str) -> list[dict[str, Any]]:
    """Honest returns of one model in each test environment, then in all, with intervals over episodes, if it played."""
    groups = read_returns(store) if (store.folder / "returns.csv").is_file() else ()
    group = next((g for g in groups if (g.split, g.method, g.protocol) == ("test", method, "honest")), None)
    if group is None or model >= group.returns.shape[1]:
        return []
    episodes, summary = group.returns.shape[2], summarise(group.returns[:, [model]])
    rows = zip((*group.environments, "all"), (*summary.environments, summary.mean), strict=True)
    return [
        {
            "environment": number,
            "mean": mean.value,
            "low": mean.low if episodes > 1 else None,
            "high": mean.high if episodes > 1 else None,
            "episodes": episodes * (len(group.environments) if number == "all" else 1),
        }
        for number, mean in rows
    ]


def body_parts(body: Body) -> dict[str, Any]:
    """What probes and infers z_d."""
    encoder = body.dynamics.encoder
    own = {"probe": body.probe, "dynamics": body.dynamics, "encoder": encoder}
    return own | {"encoder.feed_forward": encoder.feed_forward.layers}


def value_parts(adapter: Adapter) -> dict[str, Any]:
    """PD-VF."""
    value, known = adapter.value, adapter.train_z_d
    environments = known.shape[:1]  # each has a scale, also where it is the same for all
    return {
        **body_parts(adapter.body),
        "decoder.observation": adapter.body.decoder.observation,
        "decoder.layers": adapter.body.decoder.network.layers,
        "value.observation": jax.tree.map(lambda x: x[0], value.observation),  # the same for all members
        **{f"value.{name}": getattr(value, name) for name in ("first", "second", "third")},
        **{f"scale.{name}": np.full(environments, getattr(adapter.scale, name)) for name in ("low", "high")},
        "scale.power": adapter.scale.power,
        "train_z_d": known,
        "familiar": _familiar(np.asarray(known)),
    }


def belief_parts(agent: BeliefAgent) -> dict[str, Any]:
    """A policy under a belief; the effect on states is for training alone."""
    return {"actor": agent.actor, "model": agent.model, "model.layers": agent.model.prediction_net.layers}


def _named_arrays(parts: Any) -> Weights:
    """All arrays of some parts, by their paths; the runtime knows those that it needs by the same names."""
    found = jax.tree.leaves_with_path(parts)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(array) for path, array in found}


def _familiar(z_d: np.ndarray) -> np.ndarray:
    """The largest distance of a training environment's z_d to its nearest other."""
    if z_d.shape[0] == 1:
        return np.asarray(2.0, np.float32)  # no two unit vectors are farther apart
    apart = np.sqrt(np.sum((z_d[:, None] - z_d[None]) ** 2, axis=-1)) + np.diag(np.full(z_d.shape[0], np.inf))
    return np.asarray(max(apart.min(axis=1).max(), 1e-6), np.float32)


AGENTS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], dict[str, Any]]]] = {
    Adapter: ("value", value_parts, value_fields),
    ValueFunction: ("value", lambda x: value_parts(x.adapter), lambda x: value_fields(x.adapter)),
    BeliefAgent: ("belief", belief_parts, belief_fields),
    Unconditioned: ("policy", lambda x: x, lambda _: {}),
    DynamicsConditioned: ("conditioned", lambda x: body_parts(x.body) | {"actor": x.actor}, lambda _: {}),
    NearestPolicy: (
        "nearest",
        lambda x: body_parts(x.body) | {"actor": x.actors, "centres": x.centres},
        lambda _: {},
    ),
    OnlineAgent: ("history", lambda x: x, lambda x: {"history": x.history}),
}
"""Layout, parts and header fields for each kind of agent."""
NUMPY = tuple(name for name, method in METHODS.items() if not (method.privileged or method.rewarded))
"""Methods that leave as a file for NumPy."""


def require_exportable(method: Method) -> None:
    """Raises for a method that is told what a robot does not know."""
    if method.privileged:
        known = ", ".join(name for name, other in METHODS.items() if not other.privileged)
        raise ConfigError(
            f"{method.name} is told the hidden context, which is not known where it would act, expected one of: {known}"
        )
