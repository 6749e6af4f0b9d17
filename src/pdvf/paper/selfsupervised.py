"""Phase 2, self-supervised learning: trajectories, then embeddings of dynamics and of policies (section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pdvf.core import fitting as fit
from pdvf.core.arrays import Array
from pdvf.core.devices import Program, run_concurrently, shard_over_devices
from pdvf.core.networks import vmap_init
from pdvf.core.staged import OneStage
from pdvf.paper import dynamics, policy
from pdvf.paper.dynamics import DynamicsAutoencoder
from pdvf.paper.policy import PolicyAutoencoder
from pdvf.paper.problem import Problem, Stream, flat_policies
from pdvf.paper.trajectories import Trajectories, collect, training_episodes
from pdvf.rl.networks import Actor

EMBED_STAGES = 20
COLLECTED = 2**24  # most steps that are collected at once, before episodes are thinned


def collection(problem: Problem, policies: Actor) -> OneStage:
    """Every kept policy plays in every training environment: `trajectories` [C, E, J, T, ...]."""

    def make() -> tuple[dict[str, Trajectories], dict[str, Any]]:
        engine, contexts = problem.engine, problem.contexts
        episodes, kept = problem.config.collect.episodes, problem.config.collect.steps
        at_once = COLLECTED // (contexts.shape[0] * episodes * engine.family.horizon)
        actors = flat_policies(policies)
        keys = jax.random.split(problem.key(Stream.TRAJECTORIES), actors.log_std.shape[0])
        play = shard_over_devices(
            lambda _, split: jax.lax.map(
                lambda row: collect(engine, contexts, episodes, kept, *row), split, batch_size=max(1, min(at_once, 64))
            )
        )
        trajectories = play((), (actors, keys))
        quantiles = jnp.quantile(trajectories.returns, jnp.array([0.1, 0.5, 0.9]))
        steps = float(problem.transfer_steps(actors.log_std.shape[0], episodes))
        metrics = {"mean_return": jnp.mean(trajectories.returns), "return_quantiles": quantiles, "steps": steps}
        return {"trajectories": trajectories}, metrics

    return OneStage("collect", make)


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

        def one(key: Array, trajectories: Trajectories) -> Autoencoders:
            keys = jax.random.split(key, 4)
            fresh_dynamics = dynamics.make(trajectories, config.dynamics, keys[0])
            fresh_policy = policy.make(trajectories, config.policy, keys[2])
            return Autoencoders(
                fit.start(fresh_dynamics, self._optimiser("dynamics"), keys[1]),
                fit.start(fresh_policy, self._optimiser("policy"), keys[3]),
            )

        return vmap_init(one, self.problem.model_keys(Stream.AUTOENCODERS), self.trajectories)

    def advance(self, state: Autoencoders, stage: int) -> tuple[Autoencoders, dict[str, Array]]:
        """A twentieth of the epochs of both."""
        names, programs = Autoencoders._fields, self._programs
        made = run_concurrently(*((programs[name], (self.trajectories, getattr(state, name))) for name in names))
        metrics = {f"{name}_{k}": v for name, (_, each) in zip(names, made, strict=True) for k, v in each.items()}
        return Autoencoders(*(trained for trained, _ in made)), metrics

    @cached_property
    def _programs(self) -> dict[str, Program]:
        options, batch = self.problem.config.policy, self.problem.config.dynamics.batch
        steps = self.problem.engine.family.probe_steps
        losses = {
            "dynamics": lambda model, data, *how: dynamics.loss(model, data, steps, batch, *how),
            "policy": lambda model, data, *how: policy.loss(model, data, options, *how),
        }
        return {name: self._program(name, loss) for name, loss in losses.items()}

    def _program(self, which: str, loss: Callable[..., Array]) -> Program:
        """Some updates of autoencoders [S, ...]."""
        optimiser, updates = self._optimiser(which), self._updates(which)

        def one(trajectories: Trajectories, state: fit.Fit[Any]):
            def learn(model: Any, key: Array, held_out: bool = False) -> Array:
                return loss(model, trajectories, key, held_out)

            return fit.advance(state, optimiser, learn, partial(learn, held_out=True), updates)

        return shard_over_devices(lambda shared, split: jax.vmap(lambda state: one(shared, state))(split))

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
