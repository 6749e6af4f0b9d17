"""An agent as one ONNX graph: a step of an episode, with the normaliser inside and the memory as inputs and outputs.

Whatever the method, the inputs are `observation` [o], the parts of the memory (`memory.NAME`), and the `reward` of the
last step where the agent wants it. The outputs are `action` [a], in the environment's units and inside the bounds, and
the memory after the step (`next.NAME`), which is that of the next one. An episode begins with zeros in all of the
memory. Everything is float32.

The graph is made from the agent's own JAX program (`agent_step`, traced) by `pdvf.deploy.jax_to_onnx`, so it holds for
methods that are not written yet. Parts of the memory that no action depends on are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf import __version__
from pdvf.core.arrays import Array, Scaler
from pdvf.core.validation import ConfigError
from pdvf.deploy.jax_to_onnx import Graph
from pdvf.deploy.model_format import bounds
from pdvf.engines.rollout import Feedback, Transitions
from pdvf.families.base import Family
from pdvf.methods.adaptive import BeliefAgent
from pdvf.methods.base import Agent, KeepsMemory

OPSET, IR = 18, 10
"""Of April 2024: runtimes of that time and later read them."""


class Memory(NamedTuple):
    """What is carried from one step to the next, all zero before the first."""

    steps: Array  # []
    observation: Array  # [o] of the step before
    action: Array  # [a] scaled, of the step before
    transitions: Transitions  # [N_d, ...] of the probing steps
    agent: Any  # the agent's own


def agent_step(
    agent: Agent, family: Family, memory: Memory, observation: Array, reward: Array
) -> tuple[Array, dict[str, Array], Memory]:
    """Action [a] in the environment's units, what the agent tells beside it, and the memory after one step."""
    first, probe_steps = memory.steps == 0, memory.transitions.valid.shape[0]
    begun = agent.begin_episode(observation, None)
    own = jax.tree.map(lambda new, old: jnp.where(first, new, old), begun, memory.agent)
    last = Transitions(memory.observation, memory.action, reward, observation, jnp.ones((), bool))
    here = jnp.arange(probe_steps) == memory.steps - 1
    transitions = jax.tree.map(
        lambda rows, row: jnp.where(here.reshape(-1, *[1] * row.ndim), row, rows), memory.transitions, last
    )
    if not isinstance(agent, KeepsMemory):
        probed = transitions._replace(valid=jnp.ones(probe_steps, bool))
        own = jax.lax.cond(memory.steps == probe_steps, lambda: agent.adapt(own, probed), lambda: own)
    feedback = Feedback(jnp.where(first, 0.0, memory.action), jnp.where(first, 0.0, reward), first.astype(jnp.float32))
    scaled, own = agent.act(own, observation, feedback)
    scaled = jnp.clip(scaled, -1.0, 1.0)
    low, high = bounds({"action_low": family.action.low, "action_high": family.action.high})
    action = jnp.clip(Scaler.from_box(family.action).unscale(scaled), low, high)
    told = {"out_of_distribution": agent.out_of_distribution(own)} if isinstance(agent, BeliefAgent) else {}
    return action, told, Memory(memory.steps + 1, observation, scaled, transitions, own)


def export_onnx(agent: Any, family: Family, about: dict[str, Any]) -> bytes:
    """The graph of one model (no leading axis) as a file; `about` with the model card is in its metadata."""
    onnx = library()
    if not all(np.isfinite(x).all() for x in map(np.asarray, jax.tree.leaves(agent)) if x.dtype.kind == "f"):
        raise ConfigError("the model cannot be exported: it has numbers that are not finite, expected finite ones")
    observation = jnp.zeros(family.observation.size)
    zero = jnp.zeros(())
    begun = jax.eval_shape(lambda: agent.begin_episode(observation, None))
    rows = Transitions(observation, jnp.zeros(family.action.size), zero, observation, jnp.zeros((), bool))
    many = jax.tree.map(lambda x: jnp.zeros((family.probe_steps, *x.shape), x.dtype), rows)
    start = Memory(zero, observation, rows.action, many, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), begun))
    leaves, structure = jax.tree.flatten(start)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(start)]

    def flat(observation: Array, reward: Array, *given: Array) -> tuple[tuple[Array, ...], dict[str, Array]]:
        typed = [x.astype(leaf.dtype) for x, leaf in zip(given, leaves, strict=True)]
        action, told, after = agent_step(agent, family, jax.tree.unflatten(structure, typed), observation, reward)
        return (action, *(x.astype(jnp.float32) for x in jax.tree.leaves(after))), told

    arguments = [observation, zero, *(jnp.zeros(leaf.shape) for leaf in leaves)]
    traced: Any = jax.make_jaxpr(flat, return_shape=True)(*arguments)
    program, (_, told) = traced
    inputs = ["observation", "reward", *(f"memory.{name}" for name in names)]
    outputs = ["action", *(f"next.{name}" for name in names), *told]
    graph = Graph(onnx, program, inputs, outputs, {"action", *told})
    made = onnx.helper.make_model(
        graph.finish(f"{about.get('method', 'agent')} for {family.name}"),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="pdvf",
        producer_version=__version__,
        doc_string="One step of an episode. It begins with zeros in every memory input; feed each next.NAME back.",
    )
    header = {"family": family.name, "observation": family.observation.size, "action": family.action.size}
    header |= {"control_step": getattr(family, "control_step", None), **about}
    onnx.helper.set_model_props(made, {"about": json.dumps(header)})
    onnx.checker.check_model(made, full_check=True)
    return made.SerializeToString()


def library() -> Any:
    """The package onnx, or one line on how to get it."""
    try:
        import onnx
        import onnx.checker
        import onnx.helper
    except ModuleNotFoundError as error:
        raise ConfigError("ONNX files need the package onnx: pip install 'pdvf[export]'") from error
    return onnx


def about(file: Path) -> dict[str, Any]:
    """What the metadata of a file say."""
    model = library().load(str(file))
    return json.loads({entry.key: entry.value for entry in model.metadata_props}["about"])
