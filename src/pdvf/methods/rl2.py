"""RL2 (Duan et al. 2016, Wang et al. 2016): a recurrent policy that finds out by itself which dynamics it is in."""

from __future__ import annotations

from pdvf.core.arrays import Array
from pdvf.methods.base import Feedback, Hidden, Inputs, KeepsMemory, Look, Method, Training, one_policy
from pdvf.methods.multitask_ppo import method_ppo, task_ppo
from pdvf.paper.pipeline import Problem
from pdvf.rl.recurrent_networks import RecurrentActor, make_recurrent


class RecurrentAgent(KeepsMemory):
    """Acts by its hidden state, which it keeps through the episode; it needs no other way to adapt."""

    actor: RecurrentActor

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Array:
        """An empty hidden state [h]."""
        return self.actor.initial_carry()

    def act(self, memory: Array, observation: Array, feedback: Feedback) -> tuple[Array, Array]:
        """The mean of the policy, and the next hidden state."""
        return self.actor.step(memory, self.actor.inputs(observation, *feedback))


def train_rl2(problem: Problem, inputs: Inputs, key: Array) -> Training:
    """One recurrent policy for all training environments."""
    given = problem.config.baselines
    options = method_ppo(
        problem,
        problem.config.policy_seeds,
        environments=given.recurrent_environments,
        rollout=given.recurrent_rollout,
        minibatches=given.recurrent_minibatches,
    )
    return task_ppo(problem, "rl2", key, options, RecurrentAgent, make_networks=make_recurrent)


RL2 = Method(
    "rl2",
    "recurrent policy that is fed its last action and reward",
    train_rl2,
    rewarded=True,
    policies=one_policy,
    ensemble=True,
    look=Look("RL²", "#d55e00", 4),
)
