"""Presets of the MuJoCo families; those of Spaceship are in `config.py`."""

from __future__ import annotations

from dataclasses import replace

from pdvf.config import CollectOptions, Config, EvaluateOptions, PPOOptions


def mujoco_preset(paper: Config, name: str) -> Config:
    """The configuration of a preset, given one with the paper's sizes for everything."""
    paper = replace(
        paper,
        ppo=replace(paper.ppo, normalise_observations=True, normalise_rewards=True, stagger=True),
        collect=replace(paper.collect, steps=50),
    )
    presets = {"paper": lambda: paper, "best": lambda: _best(paper), "quick": lambda: _quick(paper)}
    return presets[name]() if name in presets else _smoke(paper)


def _strong(ppo: PPOOptions, family: str) -> PPOOptions:
    """A swimmer is worth what it covers in 1000 steps, so the far future has to count."""
    return replace(ppo, discount=0.9999) if family == "swimmer" else ppo


def _best(paper: Config) -> Config:
    """Strong experts: larger batches from more copies of the environment, the same number of samples."""
    ppo = replace(paper.ppo, environments=128, rollout=64, minibatches=32)
    return replace(paper, ppo=_strong(ppo, paper.family))


def _quick(paper: Config) -> Config:
    ppo = replace(paper.ppo, steps=196_608, epochs=8, minibatches=16, learning_rate=6e-4, checkpoints=4)
    return replace(
        paper,
        policy_seeds=1,
        model_seeds=1,
        ppo=_strong(ppo, paper.family),
        collect=CollectOptions(episodes=2, steps=50),
        dynamics=replace(paper.dynamics, epochs=200, batch=128, learning_rate=3e-3),
        policy=replace(paper.policy, epochs=200, batch=128, learning_rate=2e-3, set_size=32),
        value=replace(
            paper.value,
            epochs=60,
            stages=6,
            stage_epochs=20,
            batch=512,
            interpolations=60,
            uniform=20,
            probes=2,
            decoder_rounds=2,
            decoder_epochs=60,
        ),
        evaluate=EvaluateOptions(episodes=2),
    )


def _smoke(paper: Config) -> Config:
    quick = _quick(paper)
    return replace(
        quick,
        environment=replace(paper.environment, horizon=32),
        ppo=replace(quick.ppo, steps=4_096, checkpoints=2, epochs=2),
        collect=CollectOptions(episodes=2, steps=16),
        dynamics=replace(quick.dynamics, epochs=20),
        policy=replace(quick.policy, epochs=20, set_size=16),
        value=replace(
            quick.value,
            members=2,
            epochs=2,
            stages=2,
            stage_epochs=1,
            interpolations=10,
            uniform=5,
            decoder_rounds=1,
            decoder_epochs=2,
        ),
    )
