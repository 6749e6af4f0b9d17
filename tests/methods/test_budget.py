"""What a method may spend, and what it does spend: steps are counted where they are made.

With equal budgets a row of the table costs what the policies of PD-VF cost.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdvf.config import Config, ConfigError, from_dict, to_dict
from pdvf.config.presets import preset
from pdvf.experiment.cost import environment_steps
from pdvf.experiment.plan import recipes_for
from pdvf.experiment.store import RunStore
from pdvf.methods import METHODS, Training
from pdvf.methods.adaptive import AdaptiveTraining
from pdvf.methods.multitask_ppo import method_ppo
from pdvf.paper.pipeline import ArtefactShapes, Problem
from pdvf.rl.ensemble import PolicyEnsemble
from tiny import TINY, relaxed
from toy import OPTIONS, CountingProblem, ToyProblem

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
    assert isinstance(training, PolicyEnsemble | AdaptiveTraining)
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
    assert isinstance(training, PolicyEnsemble | AdaptiveTraining)
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
    assert (wind.environments, wind.rollout, wind.epochs, wind.minibatches, wind.hidden) == (4096, 32, 5, 128, 128)
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


# What is spent


SMALL = replace(
    TINY,
    family=OPTIONS.family,
    environment=OPTIONS.environment,
    policy_seeds=2,
    collect=replace(TINY.collect, episodes=4),
    value=replace(TINY.value, interpolations=3, uniform=2, probes=3, decoder_rounds=2),
)
slow = partial(pytest.param, marks=pytest.mark.slow)
COUNTED = ("collect", "nn", "best-single", "ppo-dyn")
MORE = ("train", "bound", "fit", "ppo-all", "kmeans", "oracle", "rma", "rl2", "maml", "no-agg-policy", "pd-vf-plus")


@pytest.mark.parametrize("name", [*COUNTED, *map(slow, MORE)])
def test_every_step_is_counted(name):
    """By the engine, and by the stages of a phase or method, whose inputs are random numbers."""
    problem = CountingProblem(SMALL)
    recipes = recipes_for(list(METHODS.values()))
    shapes, rng = ArtefactShapes(problem, recipes), np.random.default_rng(0)

    def some(x: jax.ShapeDtypeStruct) -> jax.Array:
        numbers = 0.4 * rng.normal(size=x.shape) + 0.2
        return jnp.asarray(numbers > 0 if x.dtype == bool else numbers, x.dtype)

    with relaxed():
        inputs = [jax.tree.map(some, shapes[needed]) for needed in recipes[name].needs]
        made = recipes[name].make(problem, *inputs)
        state, said = made.start(), 0
        for stage in range(made.stages):
            state, metrics = made.advance(state, stage)
            said += int(metrics["steps"])
        jax.block_until_ready(made.finish(state))
    assert problem.count.steps == said > 0


def test_what_a_row_rests_on_is_counted_once(tmp_path):
    """The cost of a method with that of all artefacts that it comes from; two artefacts of a phase cost one phase."""
    store = RunStore.create(tmp_path / "run", to_dict(TINY), "test")
    for name, steps, inputs in (
        ("policies", 1000, ()),
        ("trajectories", 200, ("policies",)),
        ("adapter", 30, ("policies", "trajectories")),
        ("initial_adapter", 30, ("policies", "trajectories")),
        ("upper_bound", 5000, ()),
        ("agent-pd-vf", None, ("adapter", "initial_adapter")),
        ("agent-ppo-env", None, ("policies", "upper_bound")),
        ("agent-nn", 4, ("policies", "adapter")),
        ("agent-free", None, ()),
    ):
        history = [{"steps": float(steps)}, {"loss": 1.0}] if steps else []
        store.save(name, {"x": np.zeros(1)}, info={"history": history}, inputs=inputs)
    assert environment_steps(store) == {"pd-vf": 1230, "ppo-env": 6000, "nn": 1234}
