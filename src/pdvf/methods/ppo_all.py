"""PPOall (section 4.3): one policy for all training environments, which is told nothing of the one it is in."""

from __future__ import annotations

from pdvf.core.arrays import Array
from pdvf.methods.base import Feedback, Hidden, Inputs, KeepsMemory, Look, Method, Training, one_policy
from pdvf.methods.multitask_ppo import method_ppo, task_ppo
from pdvf.paper.pipeline import Problem
from pdvf.rl.networks import Actor


class Unconditioned(KeepsMemory):
    """A policy that sees what there is to see."""

    actor: Actor

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> tuple[()]:
        """Remembers nothing."""
        return ()

    def act(self, memory: tuple[()], observation: Array, feedback: Feedback) -> tuple[Array, tuple[()]]:
        """The policy's mean."""
        return self.actor(observation), memory


def train_ppo_all(problem: Problem, inputs: Inputs, key: Array) -> Training:
    """One policy for all training environments."""
    return task_ppo(problem, "ppo-all", key, method_ppo(problem, problem.config.policy_seeds), Unconditioned)


PPO_ALL = Method(
    "ppo-all",
    "one PPO policy for all training environments",
    train_ppo_all,
    policies=one_policy,
    ensemble=True,
    look=Look("PPOall", "#b8a800", 7),
)
