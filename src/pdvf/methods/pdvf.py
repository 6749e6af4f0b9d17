"""Methods made from the artefacts of a run: PD-VF, its ablations without aggregation, NN, and the bound PPOenv."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.core.objective import objective_of
from pdvf.methods.base import AtOnce, Feedback, Hidden, Inputs, KeepsMemory, Look, Method, Transitions, agent_artefact
from pdvf.methods.kmeans import NearestPolicy
from pdvf.methods.ppo_all import Unconditioned
from pdvf.paper import untrained
from pdvf.paper.adapter import Adapter, Select, closed_form
from pdvf.paper.pipeline import Problem, Supervised, best_policy, transfer
from pdvf.rl.networks import Actor

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
        del hidden
        known = self.adapter.train_z_d, self.adapter.train_z_pi
        z_d, z_pi = (jnp.zeros(x.shape[-1], observation.dtype) for x in known)
        return Choice(observation, z_d, z_pi, jnp.zeros((), bool))

    def act(self, memory: Choice, observation: Array, feedback: Feedback) -> tuple[Array, Choice]:
        """The probe policy at first, then the decoded one."""
        return self.decide(memory, observation), self.learn(memory, observation, feedback)

    def learn(self, memory: Choice, observation: Array, feedback: Feedback) -> Choice:
        """Nothing: all that is inferred is inferred from the probing steps."""
        del observation, feedback
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
        z_d = self.adapter.body.infer(transitions)
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
    del problem, key
    return AtOnce("pd-vf", lambda: value_agents(inputs["adapter"]))


# Ablations

_SUPERVISED = ("policies", "trajectories", "dynamics", "policy")


def train_no_agg_value(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """Nothing to train: W as phase 3 had it before aggregation; the decoder is the run's own, with aggregation."""
    del problem, key
    return AtOnce("no-agg-value", lambda: value_agents(inputs["initial_adapter"]))


@dataclass(frozen=True)
class Refit:
    """The supervised phase once more, with something left out."""

    name: str
    phase: Supervised

    @property
    def stages(self) -> int:
        """Those of the phase."""
        return self.phase.stages

    def start(self) -> Any:
        """The phase's first state."""
        return self.phase.start()

    def advance(self, state: Any, stage: int) -> tuple[Any, dict[str, Any]]:
        """A stage of the phase."""
        return self.phase.advance(state, stage)

    def finish(self, state: Any) -> dict[str, Any]:
        """PD-VF with what this phase has learned."""
        return {agent_artefact(self.name): value_agents(self.phase.finish(state)["adapter"])}


def train_no_agg_policy(problem: Problem, inputs: Inputs, key: Array) -> Refit:
    """The decoder as the autoencoder left it, then W with aggregation."""
    del key
    config = replace(problem.config, value=replace(problem.config.value, decoder_rounds=0))
    artefacts = (inputs[needed] for needed in _SUPERVISED)
    return Refit("no-agg-policy", Supervised(replace(problem, config=config), *artefacts))


# NN


def train_nn(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """The finished policies of phase 1: of each training environment's seeds the one that is best there."""
    adapter: Adapter = inputs["adapter"]
    episodes = problem.config.evaluate.episodes

    def make() -> NearestPolicy:
        finished = jax.tree.map(lambda x: x[-1], inputs["policies"])  # [E, seeds, ...]
        contexts = jnp.asarray(problem.contexts)

        def own(actors: Actor, context: Array, key: Array) -> Array:
            played = transfer(problem.engine, jnp.tile(context, (episodes, 1)), actors, key)
            return objective_of(problem.engine.family).summary(played, -1)

        returns = jax.jit(jax.vmap(own))(finished, contexts, jax.random.split(key, contexts.shape[0]))
        best = jnp.argmax(returns, axis=-1)
        actors = jax.tree.map(lambda x: x[jnp.arange(contexts.shape[0]), best], finished)
        seeds = adapter.train_z_d.shape[0]
        return NearestPolicy(
            jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), actors), adapter.train_z_d, adapter.body
        )

    played = problem.config.policy_seeds * episodes * len(problem.contexts) * problem.engine.family.horizon
    return AtOnce("nn", make, played)


def untrained_nn(problem: Problem) -> NearestPolicy:
    """Agents [S, ...] of NN's shapes."""
    adapter = untrained.adapter(problem)
    actors = untrained.actors(problem, problem.config.model_seeds, len(problem.contexts))
    return NearestPolicy(actors, adapter.train_z_d, adapter.body)


# The best single policy


def train_best_single(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """Nothing to train: phase 1 did."""
    del key
    seeds = problem.config.model_seeds

    def make() -> Unconditioned:
        best = best_policy(problem, inputs["policies"])
        return Unconditioned(jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), best))

    policies = problem.config.policy_seeds * len(problem.contexts)
    return AtOnce("best-single", make, problem.transfer_steps(policies))


# PPOenv


class OwnPolicy(KeepsMemory):
    """The policy that was trained in the very environment."""

    actors: Actor  # [E, ...] training and test environments

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """The environment it is told."""
        del observation
        assert hidden is not None
        return hidden.environment

    def act(self, memory: Array, observation: Array, feedback: Feedback) -> tuple[Array, Array]:
        """The mean of that environment's policy."""
        del feedback
        return jax.tree.map(lambda x: x[memory], self.actors)(observation), memory


def train_ppo_env(problem: Problem, inputs: Inputs, key: Array) -> AtOnce:
    """Nothing to train: phase 1 did, in the test environments too."""
    del problem, key

    def make() -> OwnPolicy:
        def join(kept: Array, bound: Array) -> Array:
            return jnp.swapaxes(jnp.concatenate([kept[-1], bound]), 0, 1)  # [seeds, E, ...]

        return OwnPolicy(jax.tree.map(join, inputs["policies"], inputs["upper_bound"]))

    return AtOnce("ppo-env", make)


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
PPO_ENV = Method(
    "ppo-env",
    "PPO trained in the very environment it is tested in (upper bound)",
    train_ppo_env,
    ("policies", "upper_bound"),
    lambda problem: OwnPolicy(untrained.actors(problem, problem.config.policy_seeds, len(problem.everywhere))),
    privileged=True,
    every_run=True,
    look=Look("PPOenv", "#e69f00", 1),
)
NN = Method(
    "nn",
    "policy of the nearest training environment in z_d (ablation)",
    train_nn,
    ("policies", "adapter"),
    untrained_nn,
    variant_of=PD_VF.name,
    every_run=True,
    look=Look("NN", "#009e73", 2),
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
BEST_SINGLE = Method(
    "best-single",
    "the finished training policy with the best mean return over the training environments (ours)",
    train_best_single,
    ("policies",),
    lambda problem: Unconditioned(untrained.actors(problem, problem.config.model_seeds)),
    look=Look("Best single*", "#999933", 12),
)
