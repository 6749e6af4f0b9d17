"""Presets that several families share, as options by dotted name; a family's own are in its own file.

`paper` and `quick` are set on top of `common`, `best` on top of `paper`, `smoke` on top of `quick`; `equal` on top of
each of them, where budgets are equal.
"""

from __future__ import annotations

from typing import Any

from pdvf.families.registry import Presets

Options = dict[str, Any]
NOTHING: Options = {}

UNKNOWN_SCALE: Options = {"ppo.normalise_observations": True, "ppo.normalise_rewards": True, "ppo.stagger": True}
"""For observations and rewards of any size and episodes of any length."""

MANY_COPIES: Options = {
    "baselines.environments": 512,
    "baselines.rollout": 16,
    "baselines.meta_batch": 512,
    "baselines.meta_batches": 32,
    "baselines.recurrent_environments": 512,
    "baselines.recurrent_rollout": 32,
    "baselines.recurrent_minibatches": 16,
}
"""Baselines that train five policies at a time, for a simulator that takes hardly longer for thousands of copies."""

QUICK_MODEL: Options = {"plus.rows": 16_384, "plus.updates": 300, "plus.batch": 512}
"""PD-VF-plus's model of the dynamics where steps are few."""

QUICK: Options = {
    "policy_seeds": 1,
    "model_seeds": 1,
    "ppo.steps": 196_608,
    "ppo.environments": 16,
    "ppo.rollout": 128,
    "ppo.epochs": 8,
    "ppo.minibatches": 16,
    "ppo.learning_rate": 6e-4,
    "ppo.checkpoints": 4,
    "collect.episodes": 2,
    "dynamics.epochs": 200,
    "dynamics.batch": 128,
    "dynamics.learning_rate": 3e-3,
    "policy.epochs": 200,
    "policy.batch": 128,
    "policy.learning_rate": 2e-3,
    "policy.set_size": 32,
    "value.epochs": 60,
    "value.stages": 6,
    "value.stage_epochs": 20,
    "value.batch": 512,
    "value.interpolations": 60,
    "value.uniform": 20,
    "value.probes": 2,
    "value.decoder_rounds": 2,
    "value.decoder_epochs": 60,
    "evaluate.episodes": 2,
    **QUICK_MODEL,
}
"""For simulators in which an episode takes long."""

SMOKE: Options = {
    "ppo.steps": 4_096,
    "ppo.checkpoints": 2,
    "ppo.epochs": 2,
    "collect.episodes": 2,
    "dynamics.epochs": 20,
    "policy.epochs": 20,
    "policy.set_size": 16,
    "value.members": 2,
    "value.epochs": 2,
    "value.stages": 2,
    "value.stage_epochs": 1,
    "value.interpolations": 10,
    "value.uniform": 5,
    "value.decoder_rounds": 1,
    "value.decoder_epochs": 2,
    "evaluate.episodes": 2,
    "baselines.recurrent_environments": 16,
    "baselines.recurrent_rollout": 32,
    "baselines.estimation_rounds": 2,
    "baselines.estimation_updates": 50,
    "plus.width": 16,
    "plus.rows": 2_048,
    "plus.updates": 20,
    "plus.batch": 64,
}
"""To see that everything runs."""

MANY_STEPS: Options = {"baselines.environments": 256, "baselines.rollout": 32, "baselines.epochs": 5}
"""Baselines with millions of steps a policy, of which each need not be used as often."""


def mujoco(common: Options, best: Options = NOTHING, quick: Options = NOTHING, equal: Options = NOTHING) -> Presets:
    """As many samples as the paper's, in larger batches from more copies of the environment: a GPU wants many.

    Episodes are long and dear, so fewer of them are collected and fewer embeddings are scored than the paper's.
    """
    usual = {
        **UNKNOWN_SCALE,
        "collect.episodes": 8,
        "collect.steps": 50,
        "value.own_range": True,
        "value.interpolations": 800,
        "value.uniform": 200,
        "value.probes": 8,
        "value.stages": 12,
    }
    return {
        "common": usual | common,
        "paper": MANY_COPIES,
        "best": best,
        "quick": QUICK | quick,
        "smoke": SMOKE | {"environment.horizon": 32, "collect.steps": 16},
        "equal": MANY_STEPS | equal,
    }


def custom(horizon: int, probe_steps: int) -> Presets:
    """For a family of the user's own."""
    kept = 0 if horizon <= 50 else max(50, probe_steps + 1)
    quick = {
        "ppo.steps": 147_456,
        "collect.episodes": 4,
        "policy.batch": 64,
        "policy.epochs": 80,
        "value.interpolations": 200,
        "value.uniform": 50,
        "evaluate.episodes": 10,
    }
    return {
        "common": {**UNKNOWN_SCALE, "collect.steps": kept},
        "quick": QUICK | quick,
        "smoke": SMOKE,
    }
