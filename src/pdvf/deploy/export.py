"""A trained PD-VF or PD-VF-plus as one file for `pdvf.deploy.runtime`, which needs NumPy and safetensors only."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np

from pdvf.adapt import belief, model
from pdvf.core.validation import ConfigError
from pdvf.deploy.model_format import FORMAT, VERSION, AdapterError, check, pack
from pdvf.experiment.store import RunStore
from pdvf.families.base import Family
from pdvf.methods.adaptive import BeliefAgent
from pdvf.paper.adapter import ANCHORS, Adapter
from pdvf.reports.data import read_returns


def export(agent: Adapter | BeliefAgent, family: Family, about: dict[str, Any]) -> bytes:
    """The file of one model (no leading axis), with everything the runtime has to know."""
    box = family.action
    described = {
        "format": FORMAT,
        "version": VERSION,
        "family": family.name,
        "observation": family.observation.size,
        "action": box.size,
        "action_low": np.asarray(box.low, float).tolist(),
        "action_high": np.asarray(box.high, float).tolist(),
        "control_step": getattr(family, "control_step", None),
        "probe_steps": family.probe_steps,
        **(belief_fields(agent) if isinstance(agent, BeliefAgent) else value_fields(agent)),
        **about,
    }
    arrays = belief_weights(agent) if isinstance(agent, BeliefAgent) else weights(agent)
    try:
        check(described, arrays)
    except AdapterError as error:
        raise ConfigError(f"the model cannot be exported: it {error}") from error
    return pack(described, arrays)


def value_fields(adapter: Adapter) -> dict[str, Any]:
    """The part of the header that PD-VF alone has."""
    return {
        "anchor": adapter.anchor,
        "anchor_width": adapter.anchor_width,
        "anchors": ANCHORS,
        "sizes": sizes(adapter),
    }


def belief_fields(agent: BeliefAgent) -> dict[str, Any]:
    """The part of the header that PD-VF-plus alone has."""
    return {
        "method": "pd-vf-plus",
        "prior_std": belief.PRIOR_STD,
        "residual_edge": belief.EDGE,
        "largest_mean": belief.LARGEST,
        "farthest_input": model.FARTHEST,
        "outlier": model.OUTLIER,
        "log_std_low": model.LOG_STD[0],
        "log_std_high": model.LOG_STD[1],
        "familiar_mean": belief.FAMILIAR,
        "novelty_threshold": float(agent.model.novelty_threshold),
        "sizes": {
            "code": agent.model.code_size,
            "actor": agent.actor.layers[0].weight.shape[0],
            "model": agent.model.prediction_net.layers[0].weight.shape[0],
        },
    }


def sizes(adapter: Adapter) -> dict[str, int]:
    """The sizes that the shapes of all arrays follow from, together with those of observation and action."""
    body = adapter.body
    environments, z_d = adapter.train_z_d.shape
    members, value, _ = adapter.value.second.weight.shape
    return {
        "z_d": z_d,
        "z_pi": adapter.train_z_pi.shape[1],
        "environments": environments,
        "members": members,
        "probe": body.probe.layers[0].weight.shape[0],
        "encoder": body.dynamics.encoder.element.weight.shape[0],
        "decoder": body.decoder.network.layers[0].weight.shape[0],
        "value": value,
    }


def measured(store: RunStore, model: int, method: str = "pd-vf") -> dict[str, float]:
    """Mean honest return of one model in each test environment, by number, from a run's table of returns."""
    if not (store.folder / "returns.csv").is_file():
        return {}
    for group in read_returns(store):
        if (group.split, group.method, group.protocol) == ("test", method, "honest") and (
            model < group.returns.shape[1]
        ):
            means = group.returns[:, model].mean(axis=1)
            return {str(number): float(mean) for number, mean in zip(group.environments, means, strict=True)}
    return {}


def weights(adapter: Adapter) -> dict[str, np.ndarray]:
    """The arrays of an adapter under the names that the runtime knows."""
    encoder, value = adapter.body.dynamics.encoder, adapter.value
    named: dict[str, Any] = {
        "probe.observation": adapter.body.probe.observation,
        "probe.layers": adapter.body.probe.layers,
        "dynamics.observation": adapter.body.dynamics.observation,
        "dynamics.change": adapter.body.dynamics.change,
        **{f"encoder.{name}": getattr(encoder, name) for name in ("element", "query", "key", "value", "output")},
        "encoder.feed_forward": encoder.feed_forward.layers,
        "encoder.norms": encoder.norms,
        "encoder.embedding": encoder.embedding,
        "decoder.observation": adapter.body.decoder.observation,
        "decoder.layers": adapter.body.decoder.network.layers,
        "value.observation": jax.tree.map(lambda x: x[0], value.observation),  # the same for all members
        **{f"value.{name}": getattr(value, name) for name in ("first", "second", "third")},
    }
    made = _named_arrays(named)
    known = np.asarray(adapter.train_z_d)
    for name in ("low", "high"):  # of each training environment, also where all have the same
        made[f"scale.{name}"] = np.broadcast_to(np.asarray(getattr(adapter.scale, name)), known.shape[:1]).copy()
    return made | {"scale.power": np.asarray(adapter.scale.power), "train_z_d": known, "familiar": _familiar(known)}


def belief_weights(agent: BeliefAgent) -> dict[str, np.ndarray]:
    """The arrays of a policy under a belief; the effect on states is for training alone."""
    named = {
        "actor.observation": agent.actor.observation,
        "actor.layers": agent.actor.layers,
        "model.observation": agent.model.observation,
        "model.change": agent.model.change,
        "model.layers": agent.model.prediction_net.layers,
    }
    fields = ("origin", "frame", "temperature")
    return _named_arrays(named) | {f"model.{name}": np.asarray(getattr(agent.model, name)) for name in fields}


def _named_arrays(named: dict[str, Any]) -> dict[str, np.ndarray]:
    made: dict[str, np.ndarray] = {}
    for name, part in named.items():
        parts = {f".{i}": x for i, x in enumerate(part)} if isinstance(part, tuple) else {"": part}
        for suffix, module in parts.items():
            made |= {f"{name}{suffix}.{field}": np.asarray(array) for field, array in _arrays(module).items()}
    return made


def _arrays(module: eqx.Module) -> dict[str, Any]:
    return {name: x for name, x in vars(module).items() if eqx.is_array(x)}


def _familiar(z_d: np.ndarray) -> np.ndarray:
    """The largest distance of a training environment's z_d to its nearest other."""
    if z_d.shape[0] == 1:
        return np.asarray(2.0, np.float32)  # no two unit vectors are farther apart
    apart = np.sqrt(np.sum((z_d[:, None] - z_d[None]) ** 2, axis=-1)) + np.diag(np.full(z_d.shape[0], np.inf))
    return np.asarray(max(apart.min(axis=1).max(), 1e-6), np.float32)
