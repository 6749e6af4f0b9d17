"""Presets: what `smoke`, `quick` and `best` change in the paper's settings, for each family."""

from __future__ import annotations

from dataclasses import replace

from pdvf.config import (
    ENVIRONMENT_OPTIONS,
    BaselineOptions,
    CollectOptions,
    Config,
    ConfigError,
    EvaluateOptions,
    PlusOptions,
    PPOOptions,
    ValueOptions,
    environment_options,
)

PRESETS: dict[str, str] = {
    "smoke": "a few minutes on two cores, to see that everything works; the numbers mean nothing",
    "quick": "minutes on two cores; on Spaceship strong enough to show adaptation",
    "paper": "the paper's sizes; minutes on a GPU, hours on a CPU",
    "best": "as paper, with what makes Swimmer's policies strong (other families: the same as paper)",
}


MANY_COPIES = BaselineOptions(
    environments=512,
    rollout=16,
    meta_batch=512,
    meta_batches=32,
    recurrent_environments=512,
    recurrent_rollout=32,
    recurrent_minibatches=16,
)
"""Baselines that train five policies at a time, for a simulator that takes hardly longer for thousands of copies."""


def preset(family: str, name: str) -> Config:
    """The configuration of a preset for a family."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}, expected one of: {', '.join(PRESETS)}")
    value = ValueOptions(members=16, anchor=0.5)  # docs/decisions/0005-value.md
    paper = Config(family=family, environment=environment_options(family), value=value)
    if family == "spaceship":
        return _spaceship(paper, name)
    return _mujoco(paper, name) if family in ENVIRONMENT_OPTIONS else _own(paper, name)


def _spaceship(paper: Config, name: str) -> Config:
    paper = replace(paper, value=replace(paper.value, power=8.0, high_return=0.5))
    paper = replace(paper, imagine=replace(paper.imagine, renewed=64))  # docs/decisions/0009-plus.md
    if name in ("paper", "best"):
        return paper
    quick = replace(
        paper,
        policy_seeds=1,
        model_seeds=1,
        ppo=replace(paper.ppo, steps=983_040, rollout=64, epochs=3, minibatches=8, learning_rate=1e-3),
        collect=CollectOptions(episodes=4),
        dynamics=replace(paper.dynamics, epochs=60, batch=256, learning_rate=3e-3),
        policy=replace(paper.policy, epochs=40, batch=64, learning_rate=2e-3, set_size=16),
        value=replace(
            paper.value,
            epochs=8,
            stages=12,
            stage_epochs=6,
            batch=512,
            decoder_rounds=4,
            decoder_epochs=80,
        ),
        baselines=replace(paper.baselines, steps=655_360),
    )
    if name == "quick":
        return quick
    return replace(
        quick,
        ppo=replace(quick.ppo, steps=16_384, checkpoints=2, epochs=2),
        collect=CollectOptions(episodes=2),
        dynamics=replace(quick.dynamics, epochs=20),
        policy=replace(quick.policy, epochs=10),
        value=replace(
            quick.value,
            members=2,
            epochs=2,
            stages=2,
            stage_epochs=1,
            interpolations=150,
            uniform=50,
            probes=2,
            decoder_rounds=1,
            decoder_epochs=5,
        ),
        evaluate=EvaluateOptions(episodes=2),
        baselines=_few(quick.baselines),
        imagine=replace(quick.imagine, updates=200),
    )


def _few(baselines: BaselineOptions) -> BaselineOptions:
    return replace(
        baselines,
        steps=0,
        recurrent_environments=16,
        recurrent_rollout=32,
        estimation_rounds=2,
        estimation_updates=50,
    )


def _mujoco(paper: Config, name: str) -> Config:
    """As many samples as the paper's, in larger batches from more copies of the environment: a GPU wants many.

    Episodes are long and dear, so fewer of them are collected and fewer embeddings are scored than on Spaceship.
    """
    ppo = replace(paper.ppo, normalise_observations=True, normalise_rewards=True, stagger=True)
    ants = paper.family in ("ant-wind", "ant-legs")  # docs/decisions/0003-ppo.md
    ppo = replace(ppo, environments=512, rollout=16) if ants else replace(ppo, environments=128, rollout=64)
    paper = replace(paper, ppo=ppo, collect=CollectOptions(episodes=8, steps=50))
    value = replace(paper.value, own_range=True, interpolations=800, uniform=200, probes=8, stages=12)
    if paper.family != "ant-legs":  # docs/decisions/0005-value.md
        value = replace(value, power=4.0, high_return=0.5)
    paper = replace(paper, value=value)
    if paper.environment.horizon >= 1000:
        fewer = replace(paper.value, interpolations=400, uniform=100, probes=4, stages=10, decoder_rounds=4)
        paper = replace(paper, collect=CollectOptions(episodes=4, steps=50), value=fewer)
    paper = replace(paper, baselines=MANY_COPIES, plus=PlusOptions(by="experience", episodes=16 if ants else 4))
    if paper.family == "ant-legs":  # docs/decisions/0009-plus.md
        paper = replace(paper, plus=replace(paper.plus, generalist=True))
    if paper.family == "swimmer":
        paper = replace(paper, plus=replace(paper.plus, still=True))
    presets = {"paper": lambda: paper, "best": lambda: _best(paper), "quick": lambda: _quick(paper)}
    return presets[name]() if name in presets else _smoke(paper)


def _own(paper: Config, name: str) -> Config:
    """A family of the user's own: observations and rewards of any size, episodes of any length."""
    horizon = paper.environment.horizon
    kept = 0 if horizon <= 50 else max(50, paper.environment.probe_steps + 1)
    ppo = replace(paper.ppo, normalise_observations=True, normalise_rewards=True, stagger=True)
    paper = replace(paper, ppo=ppo, collect=replace(paper.collect, steps=kept), plus=PlusOptions(by="experience"))
    if name in ("paper", "best"):
        return paper
    quick = replace(_quick(paper), collect=CollectOptions(episodes=4, steps=kept))
    quick = replace(
        quick,
        ppo=replace(quick.ppo, steps=147_456),
        policy=replace(quick.policy, batch=64, epochs=80),
        value=replace(quick.value, interpolations=200, uniform=50),
        evaluate=EvaluateOptions(episodes=10),
    )
    if name == "quick":
        return quick
    return _small(quick)


def _strong(ppo: PPOOptions, family: str) -> PPOOptions:
    """A swimmer is worth what it covers in 1000 steps, so the far future has to count."""
    return replace(ppo, discount=0.9999) if family == "swimmer" else ppo


def _best(paper: Config) -> Config:
    return replace(paper, ppo=_strong(paper.ppo, paper.family))


def _quick(paper: Config) -> Config:
    ppo = replace(paper.ppo, steps=196_608, environments=16, rollout=128, epochs=8, minibatches=16)
    ppo = replace(ppo, learning_rate=6e-4, checkpoints=4)
    return replace(
        paper,
        policy_seeds=1,
        model_seeds=1,
        ppo=_strong(ppo, paper.family),
        baselines=BaselineOptions(),
        plus=replace(paper.plus, episodes=4),
        collect=replace(paper.collect, episodes=2),
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
    quick = replace(_quick(paper), environment=replace(paper.environment, horizon=32), collect=CollectOptions(2, 16))
    return _small(quick)


def _small(quick: Config) -> Config:
    return replace(
        quick,
        ppo=replace(quick.ppo, steps=4_096, checkpoints=2, epochs=2),
        collect=replace(quick.collect, episodes=2),
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
        evaluate=EvaluateOptions(episodes=2),
        baselines=_few(quick.baselines),
        imagine=replace(quick.imagine, updates=200),
    )
