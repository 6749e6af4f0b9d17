"""PD-VF as a method, made from the artefacts of a run, and its two ablations without aggregation (section 4.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.core.staged import Derived
from pdvf.methods.base import AtOnce, Feedback, Hidden, Inputs, Look, Method, Transitions, agent_artefact
from pdvf.paper import untrained
from pdvf.paper.adapter import Adapter, Select, closed_form
from pdvf.paper.pipeline import PHASES, Problem, Supervised

# PD-VF


class Choice(NamedTuple):
    """Initial state [o], dynamics embedding [d], policy embedding [e], and whether these are known yet []."""

    s0: Array
    z_d: Array
    z_pi: Array
    chosen: Array


class ValueFunction(eqx.Module):
    """PD-VF: after probing, the policy embedding that W rates highest acts, or one chosen otherwise (section 3.5)."""

    adapter: Adapter
    sign: Array  # [] of the embedding: the decoder plays both alike, the authors' code tries both
    select: Select = eqx.field(static=True, default=closed_form)

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Choice:
        """Keeps the initial state."""
        known = self.adapter.train_z_d, self.adapter.train_z_pi
        z_d, z_pi = (jnp.zeros(x.shape[-1], observation.dtype) for x in known)
        return Choice(observation, z_d, z_pi, jnp.zeros((), bool))

    def act(self, memory: Choice, observation: Array, feedback: Feedback) -> tuple[Array, Choice]:
        """The probe policy at first, then the decoded one."""
        return self.decide(memory, observation), self.learn(memory, observation, feedback)

    def learn(self, memory: Choice, observation: Array, feedback: Feedback) -> Choice:
        """Nothing: all that is inferred is inferred from the probing steps."""
        return memory

    def decide(self, memory: Choice, observation: Array) -> Array:
        """What the chosen embedding does, or the probe policy."""
        body = self.adapter.body
        own = body.decoder(observation, memory.z_pi)
        return jnp.where(memory.chosen, own, body.probe(observation))

    def code(self, memory: Choice) -> Array:
        """z_d [d], 0 while probing."""
        return memory.z_d

    def out_of_distribution(self, memory: Choice) -> Array:
        """How far z_d is from those of training []: about 1 is familiar."""
        return self.adapter.out_of_distribution(memory.z_d)

    def adapt(self, memory: Choice, transitions: Transitions) -> Choice:
        """Infers z_d and chooses the policy embedding."""
        z_d = self.adapter.body.dynamics.encode(transitions)
        z_pi, _ = self.select(self.adapter, memory.s0, z_d)
        return Choice(memory.s0, z_d, self.sign * z_pi, jnp.ones_like(memory.chosen))


def mirrored(agents: ValueFunction) -> ValueFunction:
    """The same with the other sign of the embedding."""
    return ValueFunction(agents.adapter, -agents.sign, agents.select)


def value_agents(adapter: Adapter, select: Select = closed_form) -> ValueFunction:
    """Agents [S, ...] of adapters [S, ...] that choose embeddings in this way."""
    return ValueFunction(adapter, jnp.ones(adapter.train_z_d.shape[0]), select)


def train_pd_vf(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """Nothing to train: phases 1 to 3 did."""
    return AtOnce("pd-vf", lambda: value_agents(inputs["adapter"]))


# Ablations

_SUPERVISED = PHASES["fit"].needs


def train_no_agg_value(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """Nothing to train: W as phase 3 had it before aggregation; the decoder is the run's own, with aggregation."""
    return AtOnce("no-agg-value", lambda: value_agents(inputs["initial_adapter"]))


def train_no_agg_policy(problem: Problem, inputs: Inputs, key: Array) -> Derived:
    """The supervised phase once more: the decoder as the autoencoder left it, then W with aggregation."""
    name = "no-agg-policy"
    config = replace(problem.config, value=replace(problem.config.value, decoder_rounds=0))
    phase = Supervised(replace(problem, config=config), *(inputs[needed] for needed in _SUPERVISED))
    return Derived(name, phase, lambda state: {agent_artefact(name): value_agents(phase.finish(state)["adapter"])})


PD_VF = Method(
    "pd-vf",
    "policy-dynamics value function (the method)",
    train_pd_vf,
    ("adapter",),
    lambda problem: value_agents(untrained.adapter(problem)),
    mirror=mirrored,
    adapting=True,
    every_run=True,
    look=Look("PD-VF", "#0072b2", 0),
)
NO_AGG_POLICY = Method(
    "no-agg-policy",
    "PD-VF without aggregation for the decoder (ablation)",
    train_no_agg_policy,
    _SUPERVISED,
    PD_VF.untrained,
    variant_of=PD_VF.name,
    look=Look("NoAggPolicy", "#332288", 8),
)
NO_AGG_VALUE = Method(
    "no-agg-value",
    "PD-VF without aggregation for W (ablation)",
    train_no_agg_value,
    ("initial_adapter",),
    lambda problem: value_agents(untrained.initial_adapter(problem)),
    variant_of=PD_VF.name,
    look=Look("NoAggValue", "#8c8c8c", 9),
)
