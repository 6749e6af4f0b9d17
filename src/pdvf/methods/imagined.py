"""PD-VF-plus by imagination (ours): W proposes, imagination decides.

Candidates for the policy embedding are tried in a learned model of the dynamics, whose hidden numbers are inferred
from the same N_d probing steps; the one with the best imagined return acts. The test environment is not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from pdvf.config import ImagineOptions
from pdvf.core import fitting as fit
from pdvf.core.arrays import Array
from pdvf.core.devices import shard_over_devices
from pdvf.core.networks import vmap_init
from pdvf.families.base import Family, ImaginableFamily
from pdvf.methods.base import Feedback, Hidden, Inputs, Transitions, agent_artefact
from pdvf.methods.imagine import model
from pdvf.methods.imagine.model import AffineDynamics, Evidence
from pdvf.methods.imagine.plan import candidates, hill_climb, imagine
from pdvf.methods.pdvf import EmbeddingAgent
from pdvf.paper.adapter import Adapter
from pdvf.paper.pipeline import Problem
from pdvf.paper.quadratic import optimal_policy_embedding
from pdvf.paper.trajectories import Trajectories, training_episodes


class ImaginationMemory(NamedTuple):
    """A `Choice`, and what the episode has shown so far."""

    s0: Array
    z_pi: Array
    chosen: Array
    evidence: Evidence  # [M, ...] of all steps before the last
    last: Array  # [o] the observation before
    time: Array  # [] steps made


class ImaginingAgent(EmbeddingAgent):
    """PD-VF whose choice among many embeddings is made by imagined episodes, and made again at every step."""

    models: AffineDynamics  # [M, ...]
    candidates: Array  # [N, e]
    moves: Array  # [R, N', e] noise by which the best one is moved, round by round
    family: ImaginableFamily = eqx.field(static=True)
    options: ImagineOptions = eqx.field(static=True)

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> ImaginationMemory:
        """Has seen nothing but the initial state."""
        members, k = self.models.log_ridge.shape[0], self.options.hidden_numbers
        nothing = Evidence(jnp.zeros((members, k, k)), jnp.zeros((members, k)))
        s0, z_pi, chosen = super().begin_episode(observation, hidden)
        return ImaginationMemory(s0, z_pi, chosen, nothing, observation, jnp.zeros((), jnp.int32))

    def act(self, memory: ImaginationMemory, observation: Array, feedback: Feedback) -> tuple[Array, ImaginationMemory]:
        """The probe policy at first, then the decoded one, whose embedding is moved where that promises more."""
        if self.options.renewed:
            memory = self._renew(memory, observation, feedback)
        return super().act(memory, observation, feedback)

    def adapt(self, memory: ImaginationMemory, transitions: Transitions) -> ImaginationMemory:
        """Imagines the rest of the episode for W's favourites and takes the best."""
        z_d = self.adapter.body.infer(transitions)
        matrix = self.adapter.matrix(memory.s0, z_d)
        optimal, _ = optimal_policy_embedding(matrix)
        value = jnp.einsum("ni,ij,nj->n", self.candidates, matrix, self.candidates)
        favourites = self.candidates[jax.lax.top_k(value, min(self.options.favourites, value.shape[0]))[1]]
        tried = jnp.concatenate([optimal[None], favourites])
        t = transitions
        z = eqx.filter_vmap(lambda m: m.infer(t.observation, t.action, t.next_observation, t.valid))(self.models)
        z_pi = hill_climb(self._score(z, t.next_observation[-1], self.family.probe_steps), tried, self.moves)
        return memory._replace(z_pi=z_pi, chosen=jnp.ones_like(memory.chosen))

    def _renew(self, memory: ImaginationMemory, observation: Array, feedback: Feedback) -> ImaginationMemory:
        """Learns from the step that was made, and tries embeddings around the acting one from here on."""
        step = (memory.last[None], feedback.action[None], observation[None], 1.0 - feedback.first[None])
        shown = eqx.filter_vmap(lambda m: m.evidence(*step))(self.models)
        evidence = jax.tree.map(jnp.add, memory.evidence, shown)
        z = eqx.filter_vmap(lambda m, e: m.solve(e))(self.models, evidence)
        flat = jnp.swapaxes(self.moves, 0, 1).reshape(-1, self.moves.shape[-1])  # of all sizes, in turn
        count = self.options.renewed
        moves = flat[(memory.time * count + jnp.arange(count)) % flat.shape[0]]
        z_pi = hill_climb(self._score(z, observation, memory.time), memory.z_pi[None], moves[None])
        z_pi = jnp.where(memory.chosen, z_pi, memory.z_pi)
        return memory._replace(z_pi=z_pi, evidence=evidence, last=observation, time=memory.time + 1)

    def _score(self, z: Array, start: Array, time: Array | int) -> Callable[[Array], Array]:
        """The imagined return of going on from a state [o] as an embedding [e], with z [M, k] for the dynamics."""
        left = self.family.horizon - self.family.probe_steps
        steps = min(left, self.options.steps or left)
        decoder = self.adapter.body.decoder
        return lambda z_pi: imagine(self.family, self.models, z, decoder, z_pi, start, time, steps)


@dataclass(frozen=True)
class ModelTraining:
    """Models of the dynamics from the trajectories of phase 2, M for each model seed."""

    problem: Problem
    trajectories: Trajectories
    adapter: Adapter  # [S, ...]
    key: Array
    name = "pd-vf-plus"
    stages = 8

    @property
    def _options(self) -> ImagineOptions:
        return self.problem.config.imagine

    @property
    def _optimiser(self):
        return fit.cosine_adam(self._options.learning_rate, self.stages * self._updates)

    @property
    def _updates(self) -> int:
        return max(self._options.updates // self.stages, 1)

    @property
    def _batch(self) -> int:
        return min(self._options.batch, training_episodes(self.trajectories))

    def start(self) -> fit.Fit[AffineDynamics]:
        """Untrained models [S * M, ...]."""
        count = self.problem.config.model_seeds * self._options.members
        make_keys, fit_keys = jax.random.split(jax.random.fold_in(self.key, 0), (2, count))
        fresh = vmap_init(lambda key, data: model.make(data, self._options, key), make_keys, self.trajectories)
        return jax.vmap(lambda m, key: fit.start(m, self._optimiser, key))(fresh, fit_keys)

    def advance(self, state: Any, stage: int) -> tuple[Any, dict[str, Array]]:
        """All models learn for a while."""
        del stage
        return self._train(self.trajectories, state)

    @cached_property
    def _train(self):
        probe_steps, batch = self.problem.engine.family.probe_steps, self._batch

        def train(trajectories: Trajectories, split: Any):
            def one(state: Any):
                def error(m: AffineDynamics, key: Array, held_out: bool) -> Array:
                    return model.loss(m, trajectories, probe_steps, batch, key, held_out)

                learn, look = (lambda m, k: error(m, k, False)), (lambda m, k: error(m, k, True))
                return fit.advance(state, self._optimiser, learn, look, self._updates)

            return jax.vmap(one)(split)

        return shard_over_devices(train)

    def finish(self, state: fit.Fit[AffineDynamics]) -> dict[str, Any]:
        """The agents [S, ...] with the models of the best held-out loss."""
        seeds, members, family = self.problem.config.model_seeds, self._options.members, self.problem.engine.family
        assert isinstance(family, ImaginableFamily)
        models = jax.tree.map(lambda x: x.reshape(seeds, members, *x.shape[1:]), state.best)
        keys = jax.random.split(jax.random.fold_in(self.key, 1), seeds)
        drawn = jax.vmap(lambda bank, key: candidates(bank, self._options.candidates, key))
        made = drawn(self.adapter.train_z_pi, keys)
        moves = jax.vmap(lambda key: self._moves(jax.random.fold_in(key, 1), made.shape[-1]))(keys)
        return {agent_artefact(self.name): ImaginingAgent(self.adapter, models, made, moves, family, self._options)}

    def _moves(self, key: Array, size: int) -> Array:
        """Noise for each round of moves, half as strong as in the round before."""
        rounds = self._options.rounds
        strength = self._options.move * 0.5 ** jnp.arange(rounds)
        return strength[:, None, None] * jax.random.normal(key, (rounds, self._options.favourites, size))


def train_by_imagination(problem: Problem, inputs: Inputs, key: Array) -> ModelTraining:
    """Models of the dynamics; everything else is PD-VF's."""
    return ModelTraining(problem, inputs["trajectories"], inputs["adapter"], key)


def cannot_imagine(family: Family) -> str:
    """Why a family cannot be imagined, or nothing."""
    if not isinstance(family, ImaginableFamily):
        return f"the family {family.name!r} has no `reward_and_done` (reward and end of a step, from observations)"
    try:
        hash(family)
    except TypeError:
        return f"the family {family.name!r} cannot be hashed: make its dataclass frozen"
    return ""
