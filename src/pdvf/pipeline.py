"""PD-VF, phase by phase, in the paper's order. Who reads only this file knows what the method does.

Each phase is a sequence of stages: `start` makes its first state, `advance` makes one stage of progress, `finish`
hands over its artefacts. States and artefacts are pytrees of arrays, so a run can stop after any stage and go on to
the same result. Nothing here knows files; `runs` saves, `cli` shows.

    ReinforcementLearning   policies for every environment                                   (section 3.2)
    Collection              their trajectories in every training environment                 (section 3.2)
    SelfSupervised          dynamics embeddings z_d and policy embeddings z_pi               (section 3.3)
    Supervised              value function W(s0, z_pi, z_d), aggregation for decoder and W   (section 3.4)
    Evaluation              one episode in each environment                                  (section 3.5)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.adapt import Adapter, ClosedForm, adapt_episodes
from pdvf.baselines.nearest import play_nearest
from pdvf.config import Config
from pdvf.embed import dynamics, fit, policy
from pdvf.embed.data import Trajectories, collect, training_episodes
from pdvf.embed.dynamics import DynamicsAutoencoder
from pdvf.embed.networks import stacked, unit
from pdvf.embed.policy import PolicyAutoencoder, encode_episode
from pdvf.engines import Engine, make_engine
from pdvf.families import make_family
from pdvf.families.base import Array
from pdvf.parallel import spread, together
from pdvf.rl import ppo
from pdvf.rl.networks import Actor
from pdvf.rl.rollout import episode_returns
from pdvf.value import aggregate
from pdvf.value.aggregate import Labelled, ReturnScale
from pdvf.value.body import Body, Scores
from pdvf.value.quadratic import QuadraticValue

EMBED_STAGES = 20
COLLECTED = 2**24  # most steps that are collected at once, before episodes are thinned
PROBE_NOISE = 0.3  # of the largest action, while W is trained; test episodes are probed without noise


@dataclass(frozen=True)
class Problem:
    """A configuration with the family and engine it names. Only `everywhere` knows the test environments."""

    config: Config

    @cached_property
    def engine(self) -> Engine:
        """What simulates."""
        return make_engine(make_family(self.config), self.config.engine, self.config.seed)

    @cached_property
    def contexts(self) -> Any:
        """Contexts [E, c] of the training environments; NumPy, so that no trace can hold them."""
        return self.engine.family.train(self.config.seed).contexts

    @cached_property
    def everywhere(self) -> Any:
        """Contexts of training and test environments, for the upper bound PPOenv and for evaluation only."""
        return np.concatenate([self.contexts, self.engine.family.test(self.config.seed).contexts])

    def key(self, phase: int) -> Array:
        """The random key of a phase."""
        return jax.random.fold_in(jax.random.key(self.config.seed), phase)

    def model_keys(self, phase: int) -> Array:
        """One key for each model seed [S]."""
        return jax.random.split(self.key(phase), self.config.model_seeds)


# --------------------------------------------------------------------------------------------------------------------
# Phase 1: reinforcement learning


class Ensemble(NamedTuple):
    """Policies in training [P, ...] and the checkpoints kept of them [K, P, ...]; P = environments x policy seeds."""

    state: ppo.TrainState
    kept: Actor


@dataclass(frozen=True)
class ReinforcementLearning:
    """Trains `policy_seeds` policies in every environment; a stage ends with a checkpoint that is kept.

    Policies of the test environments are trained in the same program, for the upper bound PPOenv alone: they share
    no data with the others and leave in an artefact of their own, which only evaluation reads.
    """

    problem: Problem
    name = "train"

    @property
    def stages(self) -> int:
        """One for each kept checkpoint."""
        return self.problem.config.ppo.checkpoints

    @cached_property
    def contexts(self) -> np.ndarray:
        """Context [P, c] of each policy, environment by environment."""
        return np.repeat(self.problem.everywhere, self.problem.config.policy_seeds, axis=0)

    def start(self) -> Ensemble:
        """Untrained policies."""
        engine, options = self.problem.engine, self.problem.config.ppo
        keys = jax.random.split(self.problem.key(1), self.contexts.shape[0])
        fresh = jax.jit(jax.vmap(lambda context, key: ppo.initialise(engine, options, context, key)))
        state = fresh(self.contexts, keys)
        return Ensemble(state, jax.tree.map(lambda x: jnp.zeros((self.stages, *x.shape), x.dtype), state.actor))

    def advance(self, ensemble: Ensemble, stage: int) -> tuple[Ensemble, dict[str, Array]]:
        """All policies learn until the next checkpoint."""
        shuffle = jax.random.fold_in(self.problem.key(2), stage)
        state, metrics = self._train(shuffle, (self.contexts, ensemble.state))
        kept = jax.tree.map(lambda all_, new: all_.at[stage].set(new), ensemble.kept, state.actor)
        shaped = metrics.episode_return.reshape(self.problem.everywhere.shape[0], -1, metrics.std.shape[-1])
        train = self.problem.contexts.shape[0]
        summary = {
            "return_per_environment": jnp.nanmean(shaped[:, :, -5:], axis=(1, 2)),
            "train_return": jnp.nanmean(shaped[:train, :, -5:]),
            "policy_loss": jnp.mean(metrics.policy_loss),
            "value_loss": jnp.mean(metrics.value_loss),
            "std": jnp.mean(metrics.std[:, -1]),
            "curve": jnp.nanmean(shaped, axis=1),
            "steps": jnp.array(float(self.contexts.shape[0] * self._steps_per_stage)),
        }
        return Ensemble(state, kept), summary

    @property
    def _steps_per_stage(self) -> int:
        options = self.problem.config.ppo
        return options.updates_per_checkpoint * options.environments * options.rollout

    @cached_property
    def _train(self):
        engine, options = self.problem.engine, self.problem.config.ppo

        def train(shuffle: Array, split: tuple[Array, ppo.TrainState]):
            def one(context: Array, state: ppo.TrainState):
                return ppo.train(engine, options, context, state, shuffle, options.updates_per_checkpoint)

            return jax.vmap(one)(*split)

        return spread(train)

    def finish(self, ensemble: Ensemble) -> dict[str, Actor]:
        """`policies` [K, E, seeds, ...] of the training environments and `upper_bound` of the test environments."""
        train = self.problem.contexts.shape[0]
        shape = (self.problem.everywhere.shape[0], self.problem.config.policy_seeds)
        kept = jax.tree.map(lambda x: x.reshape(x.shape[0], *shape, *x.shape[2:]), ensemble.kept)
        return {
            "policies": jax.tree.map(lambda x: x[:, :train], kept),
            "upper_bound": jax.tree.map(lambda x: x[-1, train:], kept),
        }


def flat_policies(policies: Actor) -> Actor:
    """All kept policies [C, ...] of [K, E, seeds, ...], the finished ones last."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), policies)


# --------------------------------------------------------------------------------------------------------------------
# Phase 2: self-supervised learning


@dataclass(frozen=True)
class Collection:
    """Every kept policy plays in every training environment."""

    problem: Problem
    policies: Actor
    name = "collect"
    stages = 1

    def start(self) -> tuple[()]:
        """Nothing is carried over."""
        return ()

    def advance(self, state: tuple[()], stage: int) -> tuple[Trajectories, dict[str, Array]]:
        """All episodes of all policies."""
        del state, stage
        engine, contexts = self.problem.engine, self.problem.contexts
        episodes, kept = self.problem.config.collect.episodes, self.problem.config.collect.steps
        at_once = COLLECTED // (contexts.shape[0] * episodes * engine.family.horizon)
        actors = flat_policies(self.policies)
        keys = jax.random.split(self.problem.key(3), actors.log_std.shape[0])
        play = spread(
            lambda _, split: jax.lax.map(
                lambda row: collect(engine, contexts, episodes, kept, *row), split, batch_size=max(1, min(at_once, 64))
            )
        )
        trajectories = play((), (actors, keys))
        quantiles = jnp.quantile(trajectories.returns, jnp.array([0.1, 0.5, 0.9]))
        return trajectories, {"mean_return": jnp.mean(trajectories.returns), "return_quantiles": quantiles}

    def finish(self, trajectories: Trajectories) -> dict[str, Trajectories]:
        """`trajectories` [C, E, J, T, ...]."""
        return {"trajectories": trajectories}


class Autoencoders(NamedTuple):
    """Both autoencoders in training, [S, ...]."""

    dynamics: fit.Fit[DynamicsAutoencoder]
    policy: fit.Fit[PolicyAutoencoder]


@dataclass(frozen=True)
class SelfSupervised:
    """Trains the dynamics and the policy autoencoder, [S] of each; those with the lowest held-out loss are kept."""

    problem: Problem
    trajectories: Trajectories
    name = "embed"
    stages = EMBED_STAGES

    def start(self) -> Autoencoders:
        """Untrained autoencoders."""
        config = self.problem.config

        def one(key: Array) -> Autoencoders:
            keys = jax.random.split(key, 4)
            fresh_dynamics = dynamics.make(self.trajectories, config.dynamics, keys[0])
            fresh_policy = policy.make(self.trajectories, config.policy, keys[2])
            return Autoencoders(
                fit.start(fresh_dynamics, self._optimiser("dynamics"), keys[1]),
                fit.start(fresh_policy, self._optimiser("policy"), keys[3]),
            )

        return stacked(one, self.problem.model_keys(4))

    def advance(self, state: Autoencoders, stage: int) -> tuple[Autoencoders, dict[str, Array]]:
        """A twentieth of the epochs of both."""
        del stage
        (d, d_metrics), (p, p_metrics) = together(
            (self._dynamics, (self.trajectories, state.dynamics)),
            (self._policy, (self.trajectories, state.policy)),
        )
        metrics = {f"dynamics_{k}": v for k, v in d_metrics.items()} | {f"policy_{k}": v for k, v in p_metrics.items()}
        return Autoencoders(d, p), metrics

    @cached_property
    def _dynamics(self):
        options, probe_steps = self.problem.config.dynamics, self.problem.engine.family.probe_steps
        optimiser = self._optimiser("dynamics")

        def advance(trajectories: Trajectories, state: fit.Fit[DynamicsAutoencoder]):
            def loss(model: DynamicsAutoencoder, key: Array, held_out: bool = False) -> Array:
                return dynamics.loss(model, trajectories, probe_steps, options.batch, key, held_out)

            return fit.advance(state, optimiser, loss, lambda m, k: loss(m, k, True), self._updates("dynamics"))

        return spread(lambda shared, split: jax.vmap(lambda s: advance(shared, s))(split))

    @cached_property
    def _policy(self):
        options = self.problem.config.policy
        optimiser = self._optimiser("policy")

        def advance(trajectories: Trajectories, state: fit.Fit[PolicyAutoencoder]):
            def loss(model: PolicyAutoencoder, key: Array, held_out: bool = False) -> Array:
                return policy.loss(model, trajectories, options, key, held_out)

            return fit.advance(state, optimiser, loss, lambda m, k: loss(m, k, True), self._updates("policy"))

        return spread(lambda shared, split: jax.vmap(lambda s: advance(shared, s))(split))

    def finish(self, state: Autoencoders) -> dict[str, object]:
        """`dynamics` and `policy` autoencoders [S, ...], the best of each."""
        return {"dynamics": state.dynamics.best, "policy": state.policy.best}

    def _updates(self, which: str) -> int:
        options = getattr(self.problem.config, which)
        total = options.epochs * max(training_episodes(self.trajectories) // options.batch, 1)
        return max(total // self.stages, 1)

    def _optimiser(self, which: str):
        rate = getattr(self.problem.config, which).learning_rate
        return fit.cosine_adam(rate, self._updates(which) * self.stages)


# --------------------------------------------------------------------------------------------------------------------
# Phase 3: supervised learning


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
    value: fit.Fit[QuadraticValue]  # M members together
    held_out: Array  # [] loss of the present value function
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
        return self.problem.config.value.decoder_rounds + 1 + self.problem.config.value.stages

    @property
    def experts(self) -> Actor:
        """All kept policies [C, ...]."""
        return flat_policies(self.policies)

    @property
    def probe(self) -> Actor:
        """The finished policy with the best mean return over the training environments: it probes, always."""

        @jax.jit
        def choose(policies: Actor) -> Actor:
            finished = jax.tree.map(lambda x: x[-1].reshape(-1, *x.shape[3:]), policies)
            returns = transfer(self.problem.engine, self.problem.contexts, finished, self.problem.key(5))
            best = jnp.argmax(jnp.mean(returns, axis=1))
            return jax.tree.map(lambda x: x[best], finished)

        return choose(self.policies)

    def start(self) -> Learning:
        """Embeds the training policies and makes room for what will be aggregated."""
        config = self.problem.config
        scaler = jax.tree.map(lambda x: x[0], self.dynamics.observation)  # of the data, so the same for all models
        sizes = config.dynamics.embedding, config.policy.embedding
        members = stacked(
            lambda key: aggregate.make_members(scaler, *sizes, config.value, key), self.problem.model_keys(8)
        )
        fresh = jax.jit(jax.vmap(self._start, in_axes=(None, None, 0, 0, 0, 0)))
        keys = self.problem.model_keys(6)
        return fresh(self.probe, self.trajectories, self.dynamics, self.policy, members, keys)

    def _start(
        self,
        probe: Actor,
        trajectories: Trajectories,
        dynamics: DynamicsAutoencoder,
        policy: PolicyAutoencoder,
        members: QuadraticValue,
        key: Array,
    ) -> Learning:
        config = self.problem.config
        options = config.value
        key, encode_key, fit_key = jax.random.split(key, 3)
        first = jax.tree.map(lambda x: x[:, :, 0], trajectories)  # one training episode a pair
        keys = jax.random.split(encode_key, first.returns.shape)
        encode = jax.vmap(lambda row: encode_episode(policy, row[0], config.policy.set_size, row[1]))
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
            scores(bank.shape[0] * 2 + options.interpolations + options.uniform),
            scores(max(options.stages, 1) * environments * options.probes),
            empty,
            ReturnScale(jnp.zeros(()), jnp.ones(()), jnp.ones(())),
            fit.start(members, self._value_optimiser(0), fit_key),
            jnp.full((), jnp.inf),
            jax.tree.map(lambda x: jnp.broadcast_to(x, (options.snapshots, *x.shape)), members),
            jnp.full(options.snapshots, jnp.inf),
            key,
        )

    def advance(self, state: Learning, stage: int) -> tuple[Learning, dict[str, Array]]:
        """One round for the decoder, the initial training of W, or one stage of aggregation."""
        rounds = self.problem.config.value.decoder_rounds
        programs = (self._decoder_round, self._initial, self._stage)
        now = 0 if stage < rounds else 1 if stage == rounds else 2
        data = (self.experts, self.trajectories)
        for program in programs[now:]:
            program.prepare(data, state)
        return programs[now](data, state)

    @cached_property
    def _decoder_round(self):
        return self._program(self._aggregate_decoder)

    @cached_property
    def _initial(self):
        return self._program(self._initial_value)

    @cached_property
    def _stage(self):
        return self._program(self._aggregate_value)

    def _program(self, function):
        return spread(lambda shared, split: jax.vmap(lambda state: function(*shared, state))(split))

    def _aggregate_decoder(self, experts: Actor, trajectories: Trajectories, state: Learning):
        """States that decoded embeddings visit, labelled by the experts they came from; then the decoder learns."""
        options, config = self.problem.config.value, self.problem.config.policy
        key, visit_key, fit_key = jax.random.split(state.key, 3)
        visited = aggregate.visit_and_label(
            self.problem.engine,
            self.problem.contexts,
            state.body,
            experts,
            state.bank,
            self._label_rows,
            state.labelled.valid.shape[1] if self.problem.config.collect.steps else 0,
            visit_key,
        )
        labelled = aggregate.append(state.labelled, visited, state.labels)
        labels = state.labels + self._label_rows
        original = aggregate.original_labels(trajectories, state.bank)
        count = config.batch * policy.DECODED
        updates = options.decoder_epochs * max(original.z_pi.shape[0] // config.batch, 1)
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
        del experts, trajectories
        options = self.problem.config.value
        key, extra_key, order_key, score_key = jax.random.split(state.key, 4)
        environments = jnp.arange(2) * (state.bank.shape[1] // 2)
        known = state.bank[:, environments].reshape(-1, state.bank.shape[-1])
        extra = aggregate.extra_embeddings(state.bank.reshape(-1, state.bank.shape[-1]), options, extra_key)
        z_pi = jax.random.permutation(order_key, jnp.concatenate([known, extra]))
        engine, contexts = self.problem.engine, self.problem.contexts
        original = state.body.score(engine, contexts, z_pi, score_key, PROBE_NOISE)
        scale = ReturnScale(jnp.min(original.returns), jnp.max(original.returns), jnp.asarray(options.power))
        state = state._replace(original=original, scale=scale, key=key)
        return self._learn_value(state, options.epochs)

    def _aggregate_value(self, experts: Actor, trajectories: Trajectories, state: Learning):
        """Plays the OPEs of the training environments, keeps what they got, then W learns from all of it.

        How far W was off for its own OPEs, which it had not seen, counts in the loss that decides which stages stay.
        """
        del experts, trajectories
        options = self.problem.config.value
        key, play_key = jax.random.split(state.key)
        scores, predicted, own = aggregate.play_optimal(
            self.problem.engine,
            self.problem.contexts,
            state.body,
            state.value.model,
            options,
            PROBE_NOISE,
            play_key,
        )
        error = jnp.mean((predicted - state.scale.scale(own)) ** 2)
        loss = state.held_out / options.members + error
        worst = jnp.argmax(state.losses)
        keep = loss < state.losses[worst]
        snapshots = jax.tree.map(
            lambda kept, new: jnp.where(keep, kept.at[worst].set(new), kept), state.snapshots, state.value.model
        )
        state = state._replace(
            snapshots=snapshots,
            losses=jnp.where(keep, state.losses.at[worst].set(loss), state.losses),
            aggregated=aggregate.append(state.aggregated, scores, state.filled),
            filled=state.filled + scores.z_pi.shape[0],
            key=key,
        )
        state, metrics = self._learn_value(state, options.stage_epochs)
        return state, metrics | {"optimal_return": jnp.mean(own), "optimal_error": error}

    def _learn_value(self, state: Learning, epochs: int) -> tuple[Learning, dict[str, Array]]:
        options = self.problem.config.value
        optimiser = self._value_optimiser(epochs)
        neighbours = aggregate.between(unit(jnp.mean(state.original.z_d, axis=0)))

        def loss(members: QuadraticValue, key: Array, held_out: bool = False) -> Array:
            original, aggregated, filled = state.original, state.aggregated, state.filled
            return aggregate.value_loss(
                members, original, aggregated, filled, state.scale, options, neighbours, key, held_out
            )

        members: Any = state.value.model
        begun = state.value._replace(optimiser=optimiser.init(members))
        value, metrics = fit.advance(begun, optimiser, loss, lambda m, k: loss(m, k, True), self._updates(epochs))
        return state._replace(value=value, held_out=metrics["held_out_loss"]), metrics

    def finish(self, state: Learning) -> dict[str, Adapter]:
        """`adapter` [S, ...]: what adapts to a new environment, with the best stages of W averaged."""

        def one(state: Learning) -> Adapter:
            best = jax.tree.map(lambda x: x[jnp.argmin(state.losses)], state.snapshots)
            best = jax.tree.map(
                lambda kept, now: jnp.where(self.problem.config.value.stages > 0, kept, now), best, state.value.model
            )
            chosen = jax.tree.map(
                lambda all_, one: jnp.where(
                    jnp.isfinite(state.losses).reshape(-1, *(1,) * one.ndim), all_, one[None]
                ).reshape(-1, *one.shape[1:]),
                state.snapshots,
                best,
            )
            probed = state.body.begin(self.problem.engine, self.problem.contexts, state.key)
            bank = state.bank.reshape(-1, state.bank.shape[-1])
            return Adapter(state.body, chosen, state.scale, probed.z_d, bank)

        return {"adapter": jax.jit(jax.vmap(one))(state)}

    @property
    def _label_rows(self) -> int:
        return 8 * self.experts.log_std.shape[0]

    def _updates(self, epochs: int) -> int:
        options = self.problem.config.value
        rows = 2 * self.experts.log_std.shape[0] + options.interpolations + options.uniform
        return epochs * max(rows * self.problem.contexts.shape[0] // options.batch, 1)

    def _value_optimiser(self, epochs: int):
        return aggregate.value_optimiser(self.problem.config.value, self._updates(epochs))


def transfer(engine: Engine, contexts: Array, actors: Actor, key: Array) -> Array:
    """Returns [P, E] of policies [P, ...] without noise in contexts [E, c]."""

    def one(actor: Actor, key: Array) -> Array:
        return episode_returns(engine, contexts, lambda s, _: jax.vmap(actor)(s), key)

    return jax.vmap(one)(actors, jax.random.split(key, actors.log_std.shape[0]))


# --------------------------------------------------------------------------------------------------------------------
# Phase 4: evaluation


@dataclass(frozen=True)
class Evaluation:
    """One episode at a time in every environment, training and test: the only phase that plays in the latter.

    `honest` is the paper's protocol without a second try. `peek` plays z and -z and keeps the better return, as the
    authors' code does; it is reported beside `honest`, never instead.
    """

    problem: Problem
    policies: Actor  # [K, E, seeds, ...]
    upper_bound: Actor  # [test E, seeds, ...]
    policy: PolicyAutoencoder  # [S, ...]
    adapter: Adapter  # [S, ...]
    name = "evaluate"
    stages = 1

    def start(self) -> tuple[()]:
        """Nothing is carried over."""
        return ()

    def advance(self, state: tuple[()], stage: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Plays everything."""
        del state, stage
        evaluation = jax.jit(self._play)(self.policies, self.upper_bound, self.policy, self.adapter)
        train = self.problem.contexts.shape[0]
        metrics = {
            f"{method}_{split}": jnp.mean(evaluation[array][at])
            for method, array in (("pd-vf", "returns"), ("nn", "nn"))
            for split, at in (("train", np.s_[:, :train]), ("test", np.s_[:, train:]))
        }
        return evaluation, metrics | {"ppo-env_test": jnp.mean(evaluation["ppo_env"][train:])}

    def finish(self, evaluation: dict[str, Array]) -> dict[str, dict[str, Array]]:
        """`evaluation`: returns and everything the report draws."""
        return {"evaluation": evaluation}

    def _play(self, policies: Actor, upper_bound: Actor, policy: PolicyAutoencoder, adapter: Adapter):
        engine, everywhere = self.problem.engine, self.problem.everywhere
        train, episodes = self.problem.contexts.shape[0], self.problem.config.evaluate.episodes
        keys = jax.random.split(self.problem.key(7), 6)
        finished = jax.tree.map(lambda a, b: jnp.concatenate([a[-1], b]), policies, upper_bound)  # [E, seeds, ...]
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), finished)
        contexts = jnp.repeat(everywhere, episodes, axis=0)

        def own(actors: Actor, context: Array, key: Array) -> Array:
            """Returns [seeds, J] of an environment's own policies."""
            return transfer(engine, jnp.tile(context, (episodes, 1)), actors, key)

        ppo_env = jax.vmap(own)(finished, everywhere, jax.random.split(keys[0], everywhere.shape[0]))
        best = jnp.argmax(jnp.mean(ppo_env[:train], axis=-1), axis=-1)
        neighbours = jax.tree.map(lambda x: x[jnp.arange(train), best], finished)  # [E, ...]

        def one(adapter: Adapter, probe_key: Array, play_key: Array):
            adapted = adapt_episodes(engine, adapter, contexts, ClosedForm(), probe_key, play_key)
            probed = adapter.body.begin(engine, contexts, probe_key)
            mirrored, _ = adapter.body.finish(engine, contexts, probed, -adapted.z_pi, play_key)
            nearest = play_nearest(engine, contexts, adapter, probed, neighbours, play_key)
            return adapted, jnp.maximum(adapted.returns, mirrored), nearest

        seeds = adapter.scale.low.shape[0]
        adapted, peek, nearest = jax.vmap(one)(
            adapter, jax.random.split(keys[1], seeds), jax.random.split(keys[2], seeds)
        )

        def grid(x: Array) -> Array:
            """[S, E * J] to [S, E, J]."""
            return x.reshape(x.shape[0], everywhere.shape[0], episodes, *x.shape[2:])

        def paths(x: Array) -> Array:
            """[S, T, E * J, ...] to the first episode of each environment, [S, E, T, ...]."""
            return jnp.moveaxis(x[:, :, ::episodes], 1, 2)

        first = jax.tree.map(lambda x: x[0], (policy, adapter))
        family, seed = engine.family, self.problem.config.seed
        return {
            "environments": jnp.array(family.train(seed).numbers + family.test(seed).numbers),
            "train_count": jnp.array(train),
            "contexts": everywhere,
            "returns": grid(adapted.returns),
            "predicted": grid(adapted.predicted),
            "z_d": grid(adapted.z_d),
            "z_pi": grid(adapted.z_pi),
            "peek": grid(peek),
            "nn": grid(nearest),
            "ppo_env": ppo_env,
            "path_observation": paths(adapted.steps.observation),
            "path_next_observation": paths(adapted.steps.next_observation),
            "path_valid": paths(adapted.steps.valid),
            "transfer": transfer(engine, everywhere, flat, keys[3]).reshape(*ppo_env.shape[:2], -1),
            **self._embeddings(finished, first[0], first[1], keys[4]),
            **self._predictions(first[1], keys[5]),
        }

    def _embeddings(self, finished: Actor, policy: PolicyAutoencoder, adapter: Adapter, key: Array):
        """z_d and z_pi of episodes of one policy of each environment in every environment, for the t-SNE figures."""
        collect_key, encode_key = jax.random.split(key)
        everywhere = self.problem.everywhere
        count, episodes = everywhere.shape[0], 2
        actors = jax.tree.map(lambda x: x[:, 0], finished)
        keys = jax.random.split(collect_key, count)
        engine, kept = self.problem.engine, self.problem.config.collect.steps
        played = jax.vmap(lambda actor, k: collect(engine, everywhere, episodes, kept, actor, k))(actors, keys)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), played)
        first = jax.tree.map(lambda x: x[:, : self.problem.engine.family.probe_steps], flat[:5])
        z_d = jax.vmap(adapter.body.dynamics.encode)(first[0], first[1], first[3], first[4])
        set_size = self.problem.config.policy.set_size
        encode_keys = jax.random.split(encode_key, flat.returns.shape[0])
        z_pi = jax.vmap(lambda row, k: encode_episode(policy, row, set_size, k))(flat, encode_keys)
        family, seed = self.problem.engine.family, self.problem.config.seed
        numbers = jnp.array(family.train(seed).numbers + family.test(seed).numbers)
        return {
            "tsne_z_d": z_d,
            "tsne_z_pi": z_pi,
            "tsne_policy": jnp.repeat(numbers, count * episodes),
            "tsne_environment": jnp.tile(jnp.repeat(numbers, episodes), count),
        }

    def _predictions(self, adapter: Adapter, key: Array):
        """W against actual returns of training policies' embeddings in the training environments."""
        choose_key, score_key = jax.random.split(key)
        z_pi = jax.random.choice(choose_key, adapter.train_z_pi, (100,))
        scores = adapter.body.score(self.problem.engine, self.problem.contexts, z_pi, score_key, 0.0)
        predict = jax.vmap(jax.vmap(adapter.predict, in_axes=(0, None, 0)))
        predicted = predict(scores.s0, scores.z_pi, scores.z_d)
        return {"value_predicted": predicted.reshape(-1), "value_actual": scores.returns.reshape(-1)}


class Row(NamedTuple):
    """A line of returns.csv."""

    family: str
    split: str
    environment: int
    method: str
    protocol: str
    seed: int
    episode: int
    value: float


def return_rows(config: Config, evaluation: dict[str, np.ndarray]) -> Iterator[Row]:
    """Every return of an evaluation, one episode a row; methods are named as in the paper's figures."""
    train = int(evaluation["train_count"])
    by_seed = {
        ("pd-vf", "honest"): evaluation["returns"],
        ("pd-vf", "peek"): evaluation["peek"],
        ("nn", "honest"): evaluation["nn"],
        ("ppo-env", "honest"): np.swapaxes(evaluation["ppo_env"], 0, 1),
    }
    for (method, protocol), returns in by_seed.items():
        for (seed, e, episode), value in np.ndenumerate(returns):
            split = "train" if e < train else "test"
            number = int(evaluation["environments"][e])
            yield Row(config.family, split, number, method, protocol, seed, episode, float(value))


# --------------------------------------------------------------------------------------------------------------------
# The phases together


class PhaseSpec(NamedTuple):
    """How a phase is made from the artefacts it needs, and what it leaves."""

    make: Callable[..., Any]
    needs: tuple[str, ...]
    leaves: tuple[str, ...]


PHASES: dict[str, PhaseSpec] = {
    "train": PhaseSpec(ReinforcementLearning, (), ("policies", "upper_bound")),
    "collect": PhaseSpec(Collection, ("policies",), ("trajectories",)),
    "embed": PhaseSpec(SelfSupervised, ("trajectories",), ("dynamics", "policy")),
    "fit": PhaseSpec(Supervised, ("policies", "trajectories", "dynamics", "policy"), ("adapter",)),
    "evaluate": PhaseSpec(Evaluation, ("policies", "upper_bound", "policy", "adapter"), ("evaluation",)),
}


class ArtefactShapes(dict[str, Any]):
    """Structure, shapes and types of artefacts by name, worked out without computing any, and only when asked for."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self._problem = problem

    def __missing__(self, name: str) -> Any:
        spec = next((spec for spec in PHASES.values() if name in spec.leaves), None)
        if spec is None:
            raise KeyError(name)

        def outputs(inputs: tuple[Any, ...]) -> dict[str, Any]:
            phase = spec.make(self._problem, *inputs)
            state = phase.advance(phase.start(), 0)[0] if phase.stages == 1 else phase.start()
            return phase.finish(state)

        self.update(jax.eval_shape(outputs, tuple(self[needed] for needed in spec.needs)))
        return self[name]


@cache
def artefact_shapes(problem: Problem) -> ArtefactShapes:
    """The shapes of all artefacts of a problem, by name."""
    return ArtefactShapes(problem)
