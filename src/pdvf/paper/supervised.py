"""Phase 3, supervised learning: the value function W, with aggregation for it and for the decoder (section 3.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pdvf.config import ValueOptions
from pdvf.core import fitting as fit
from pdvf.core.arrays import Array
from pdvf.core.devices import Program, compiled, shard_over_devices
from pdvf.core.networks import vmap_init
from pdvf.engines.rollout import where
from pdvf.paper import aggregate, policy
from pdvf.paper.adapter import Adapter
from pdvf.paper.aggregate import Labelled, ReturnScale
from pdvf.paper.dynamics import DynamicsAutoencoder
from pdvf.paper.policy import PolicyAutoencoder
from pdvf.paper.probe import probe_policy, probe_steps
from pdvf.paper.prober import Body, Scores
from pdvf.paper.problem import PROBE_NOISE, Problem, Stream, flat_policies
from pdvf.paper.quadratic import QuadraticValue
from pdvf.paper.trajectories import Trajectories
from pdvf.rl.networks import Actor


class Learning(NamedTuple):
    """The supervised phase under way, for one model seed; the phase holds [S, ...]."""

    body: Body
    bank: Array  # [C, E, e] embeddings of the training policies
    labelled: Labelled  # aggregated states for the decoder
    labels: Array  # [] how many of its rows are filled
    original: Scores  # embeddings scored before training
    aggregated: Scores  # OPEs and the returns they got
    filled: Array  # [] how many of its rows are filled
    scale: ReturnScale
    members: QuadraticValue  # [M, ...]
    fit_key: Array  # of what the members learn from
    held_out: Array  # [] loss of the present value function
    initial: QuadraticValue  # [M, ...] before anything was aggregated for it
    snapshots: QuadraticValue  # [H, M, ...] the best stages so far
    losses: Array  # [H] their held-out losses
    key: Array


@dataclass(frozen=True)
class Supervised:
    """Aggregates data for the policy decoder, then trains the value function with aggregation.

    The decoder comes first: a change of it would make every return that W has learned from stale.
    """

    problem: Problem
    policies: Actor  # [K, E, seeds, ...]
    trajectories: Trajectories
    dynamics: DynamicsAutoencoder  # [S, ...]
    policy: PolicyAutoencoder  # [S, ...]
    name = "fit"

    @property
    def stages(self) -> int:
        """Rounds for the decoder, the initial training of W, stages of aggregation."""
        return self.options.decoder_rounds + 1 + self.options.stages

    @property
    def options(self) -> ValueOptions:
        """Those of the phase."""
        return self.problem.config.value

    @property
    def experts(self) -> Actor:
        """All kept policies [C, ...]."""
        return flat_policies(self.policies)

    def start(self) -> Learning:
        """Embeds the training policies and makes room for what will be aggregated."""
        config = self.problem.config
        scaler = jax.tree.map(lambda x: x[0], self.dynamics.observation)  # of the data, so the same for all models
        sizes = config.dynamics.embedding, config.policy.embedding
        members = vmap_init(
            lambda key: aggregate.make_members(scaler, *sizes, config.value, key),
            self.problem.model_keys(Stream.VALUE_MEMBERS),
        )
        fresh = compiled(jax.vmap(self._start, in_axes=(None, None, 0, 0, 0, 0)))
        keys = self.problem.model_keys(Stream.SUPERVISED)
        probe = probe_policy(self.problem, self.policies)
        return fresh(probe, self.trajectories, self.dynamics, self.policy, members, keys)

    def _start(
        self,
        probe: Actor,
        trajectories: Trajectories,
        dynamics: DynamicsAutoencoder,
        policy: PolicyAutoencoder,
        members: QuadraticValue,
        key: Array,
    ) -> Learning:
        config, options = self.problem.config, self.options
        key, encode_key, fit_key = jax.random.split(key, 3)
        first = jax.tree.map(lambda x: x[:, :, 0], trajectories)  # one training episode a pair
        keys = jax.random.split(encode_key, first.returns.shape)
        encode = jax.vmap(lambda row: policy.encode(row[0], config.policy.set_size, row[1]))
        bank = jax.lax.map(encode, (first, keys))
        e, d = bank.shape[-1], config.dynamics.embedding
        environments, o = self.problem.contexts.shape[0], first.observation.shape[-1]
        family = self.problem.engine.family
        a, steps = first.action.shape[-1], family.horizon - family.probe_steps
        if config.collect.steps:
            steps = min(steps, config.collect.steps)

        def scores(rows: int) -> Scores:
            pairs = (rows, environments)
            home = jnp.zeros(rows, jnp.int32)
            return Scores(jnp.zeros((rows, e)), jnp.zeros((*pairs, o)), jnp.zeros((*pairs, d)), jnp.zeros(pairs), home)

        rows = self._label_rows * options.decoder_rounds or 1
        labelled = Labelled(
            jnp.zeros((rows, e)),
            jnp.zeros((rows, steps, o)),
            jnp.zeros((rows, steps, a)),
            jnp.zeros((rows, steps), bool),
        )
        empty = jnp.zeros((), jnp.int32)
        return Learning(
            Body(probe, dynamics, policy.decoder),
            bank,
            labelled,
            empty,
            scores(self._scored),
            scores(max(options.stages, 1) * environments * options.probes),
            empty,
            ReturnScale.of(jnp.zeros((1, environments)), options),
            members,
            fit_key,
            jnp.full((), jnp.inf),
            members,
            jax.tree.map(lambda x: jnp.broadcast_to(x, (options.snapshots, *x.shape)), members),
            jnp.full(options.snapshots, jnp.inf),
            key,
        )

    def advance(self, state: Learning, stage: int) -> tuple[Learning, dict[str, Any]]:
        """One round for the decoder, the initial training of W, or one stage of aggregation."""
        rounds = self.options.decoder_rounds
        now = 0 if stage < rounds else 1 if stage == rounds else 2
        state, metrics = self._programs[now]((self.experts, self.trajectories), state)
        return state, metrics | {"steps": float(self._steps(now, stage))}

    def _steps(self, now: int, stage: int) -> int:
        """Environment steps of a stage with one of the three programs, for all models.

        The first has those of `start`, which looks for the probe, the last those of `finish`, which probes.
        """
        problem, family, environments = self.problem, self.problem.engine.family, len(self.problem.contexts)
        optima = environments * self.options.probes
        steps = (
            self._label_rows * family.horizon,
            problem.transfer_steps(self._scored),
            problem.transfer_steps(optima) + optima * family.probe_steps,
        )[now]
        if stage == self.stages - 1:
            steps += environments * family.probe_steps
        return problem.config.model_seeds * steps + (probe_steps(problem) if stage == 0 else 0)

    @cached_property
    def _programs(self) -> list[Program]:
        def program(function: Callable[..., Any]) -> Program:
            return shard_over_devices(lambda shared, split: jax.vmap(lambda state: function(*shared, state))(split))

        return [program(one) for one in (self._aggregate_decoder, self._initial_value, self._aggregate_value)]

    def _aggregate_decoder(self, experts: Actor, trajectories: Trajectories, state: Learning):
        """States that decoded embeddings visit, labelled by the experts they came from; then the decoder learns."""
        config = self.problem.config.policy
        key, visit_key, fit_key = jax.random.split(state.key, 3)
        engine, contexts, rows = self.problem.engine, self.problem.contexts, self._label_rows
        kept = state.labelled.valid.shape[1] if self.problem.config.collect.steps else 0
        visited = aggregate.visit_and_label(engine, contexts, state.body, experts, state.bank, rows, kept, visit_key)
        labelled = aggregate.append(state.labelled, visited, state.labels)
        labels = state.labels + rows
        original = aggregate.original_labels(trajectories, state.bank)
        count = config.batch * policy.DECODED
        updates = self.options.decoder_epochs * max(original.z_pi.shape[0] // config.batch, 1)
        optimiser = fit.cosine_adam(config.learning_rate, updates)

        def loss(decoder, key: Array) -> Array:
            return aggregate.decoder_loss(decoder, original, labelled, labels, config.noise, count, key)

        trained, metrics = fit.advance(
            fit.start(state.body.decoder, optimiser, fit_key), optimiser, loss, loss, updates
        )
        body = Body(state.body.probe, state.body.dynamics, trained.model)
        state = state._replace(body=body, labelled=labelled, labels=labels, key=key)
        return state, {"decoder_loss": metrics["loss"]}

    def _initial_value(self, experts: Actor, trajectories: Trajectories, state: Learning):
        """Scores the embeddings of training policies and others near and far, then trains W on these returns."""
        key, extra_key, order_key, score_key = jax.random.split(state.key, 4)
        environments, e = jnp.arange(2) * (state.bank.shape[1] // 2), state.bank.shape[-1]
        known = state.bank[:, environments].reshape(-1, e)
        extra = aggregate.extra_embeddings(state.bank.reshape(-1, e), self.options, extra_key)
        z_pi = jax.random.permutation(order_key, jnp.concatenate([known, extra]))
        engine, contexts = self.problem.engine, self.problem.contexts
        original = state.body.score(engine, contexts, z_pi, score_key, PROBE_NOISE)
        state = state._replace(original=original, scale=ReturnScale.of(original.returns, self.options), key=key)
        state, metrics = self._learn_value(state, self.options.epochs)
        return state._replace(initial=state.members), metrics

    def _aggregate_value(self, experts: Actor, trajectories: Trajectories, state: Learning):
        """Plays the OPEs of the training environments, keeps what they got, then W learns from all of it.

        How far W was off for its own OPEs, which it had not seen, counts in the loss that decides which stages stay.
        """
        key, play_key = jax.random.split(state.key)
        engine, contexts = self.problem.engine, self.problem.contexts
        scores, predicted, own = aggregate.play_optimal(
            engine, contexts, state.body, state.members, self.options, PROBE_NOISE, play_key
        )
        error = jnp.mean((predicted - state.scale.at(scores.home[::2]).scale(own)) ** 2)
        loss = state.held_out / self.options.members + error
        worst = jnp.argmax(state.losses)
        keep = loss < state.losses[worst]
        snapshots, losses = jax.tree.map(
            lambda kept, new: jnp.where(keep, kept.at[worst].set(new), kept),
            (state.snapshots, state.losses),
            (state.members, loss),
        )
        state = state._replace(
            snapshots=snapshots,
            losses=losses,
            aggregated=aggregate.append(state.aggregated, scores, state.filled),
            filled=state.filled + scores.z_pi.shape[0],
            key=key,
        )
        state, metrics = self._learn_value(state, self.options.stage_epochs)
        return state, metrics | {"optimal_return": jnp.mean(own), "optimal_error": error}

    def _learn_value(self, state: Learning, epochs: int) -> tuple[Learning, dict[str, Array]]:
        """The members go on for some passes over all scores there are, with a step size that starts anew."""
        updates = epochs * max(self._scored * self.problem.contexts.shape[0] // self.options.batch, 1)
        optimiser = aggregate.value_optimiser(self.options, updates)

        def loss(members: QuadraticValue, key: Array, held_out: bool = False) -> Array:
            return aggregate.value_loss(
                members, state.original, state.aggregated, state.filled, state.scale, self.options, key, held_out
            )

        begun = fit.start(state.members, optimiser, state.fit_key)
        value, metrics = fit.advance(begun, optimiser, loss, lambda m, k: loss(m, k, True), updates)
        return state._replace(members=value.model, fit_key=value.key, held_out=metrics["held_out_loss"]), metrics

    def finish(self, state: Learning) -> dict[str, Adapter]:
        """`adapter` [S, ...]: what adapts to a new environment, with the best stages of W averaged.

        `initial_adapter` has W as it was before aggregation.
        """

        def one(state: Learning) -> dict[str, Adapter]:
            best = state.members
            if self.options.stages > 0:
                best = jax.tree.map(lambda x: x[jnp.argmin(state.losses)], state.snapshots)
            chosen = jax.tree.map(partial(where, jnp.isfinite(state.losses)), state.snapshots, best)
            chosen = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), chosen)
            probed = state.body.begin(self.problem.engine, self.problem.contexts, state.key)
            bank = state.bank.reshape(-1, state.bank.shape[-1])
            anchor = self.options.anchor, self.options.anchor_width

            def adapter(members: QuadraticValue) -> Adapter:
                return Adapter(state.body, members, state.scale, probed.z_d, bank, *anchor)

            return {"adapter": adapter(chosen), "initial_adapter": adapter(state.initial)}

        return compiled(jax.vmap(one))(state)

    @property
    def _label_rows(self) -> int:
        return 8 * self.experts.log_std.shape[0]

    @property
    def _scored(self) -> int:
        """Embeddings that are scored before training: each kept policy's in two environments, and others."""
        return 2 * self.experts.log_std.shape[0] + self.options.interpolations + self.options.uniform
