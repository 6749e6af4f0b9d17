"""What a method may spend: with equal budgets a row of the table costs what the policies of PD-VF cost."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from pdvf.config import Config, ConfigError, from_dict, to_dict
from pdvf.config.presets import preset
from pdvf.methods import METHODS, Training
from pdvf.methods.adaptive import AdaptiveTraining
from pdvf.methods.multitask_ppo import TaskPPO, method_ppo
from pdvf.paper.pipeline import Problem
from toy import OPTIONS, ToyProblem

FREE = ("ppo-all", "oracle", "rl2", "maml", "pd-vf-plus")
"""Methods that PPO trains and that need no artefacts."""
TRAIN = {"spaceship": 15, "ant-wind": 15, "ant-legs": 12, "swimmer": 15}
"""Training environments."""


def problem_of(config: Config) -> Problem:
    """With nothing to simulate: only the number of training environments counts."""
    problem = Problem(config)
    problem.__dict__["contexts"] = np.zeros((TRAIN[config.family], 1))
    return problem


def spent(training: Training, seeds: int) -> int:
    """Environment steps of a whole training."""
    assert isinstance(training, TaskPPO | AdaptiveTraining)
    options = training.options
    more = training.stages * training.gathered if isinstance(training, AdaptiveTraining) else 0
    updates = options.checkpoints * options.updates_per_checkpoint
    return seeds * (updates * options.environments * options.rollout + more)


@pytest.mark.parametrize("name", FREE)
def test_equal_budgets_are_used_up_and_not_exceeded(name):
    """Four training environments, two seeds: what eight policies cost is shared by two."""
    problem = ToyProblem(replace(OPTIONS, budget="equal"))
    row = 4 * 2 * OPTIONS.ppo.steps
    training = METHODS[name].train(problem, {}, jax.random.key(0))
    assert 0.9 * row < spent(training, 2) <= row


@pytest.mark.parametrize("name", FREE)
def test_the_papers_budget_is_the_same_for_every_policy(name):
    training = METHODS[name].train(ToyProblem(), {}, jax.random.key(0))
    assert isinstance(training, TaskPPO | AdaptiveTraining)
    assert 0.9 * OPTIONS.ppo.steps < training.options.steps <= OPTIONS.ppo.steps


@pytest.mark.parametrize("family", TRAIN)
def test_a_row_at_the_papers_size(family):
    """Five policies in each training environment, three million steps each: so many steps for each of five seeds."""
    problem = problem_of(preset(family, "paper", "equal"))
    row = TRAIN[family] * 5 * 3_000_000
    assert method_ppo(problem, 5).steps == row / 5
    assert method_ppo(problem, 25).steps == row / 25  # Kmeans: five clusters
    assert method_ppo(problem_of(preset(family, "paper")), 25).steps == 3_000_000


def test_sizes_grow_with_the_steps():
    """In place of the number of updates; where there are few steps, they do not grow."""
    wind = method_ppo(problem_of(preset("ant-wind", "paper", "equal")), 5)
    assert (wind.environments, wind.rollout, wind.epochs, wind.minibatches, wind.hidden) == (4096, 32, 5, 32, 128)
    ship = method_ppo(problem_of(preset("spaceship", "paper", "equal")), 5)
    assert (ship.environments, ship.rollout, ship.epochs, ship.minibatches, ship.hidden) == (1024, 50, 10, 32, 64)
    small = method_ppo(problem_of(preset("spaceship", "smoke", "equal")), 1)
    assert small.environments == preset("spaceship", "smoke", "equal").baselines.environments
    for family in TRAIN:
        config = preset(family, "paper")
        copies = config.baselines.environments or config.ppo.environments
        assert method_ppo(problem_of(config), 5).environments == copies


def test_the_budget_is_part_of_the_configuration():
    config = preset("ant-legs", "quick", "equal")
    assert to_dict(config)["budget"] == "equal"
    assert from_dict(to_dict(config)) == config
    assert preset("ant-legs", "quick") == replace(
        config, budget="paper", baselines=preset("ant-legs", "quick").baselines
    )


def test_an_unknown_budget():
    with pytest.raises(ConfigError, match="budget is 'fair', expected one of paper, equal"):
        replace(OPTIONS, budget="fair")
    with pytest.raises(ConfigError, match="unknown budget 'fair', expected one of: paper, equal"):
        preset("spaceship", "quick", "fair")
