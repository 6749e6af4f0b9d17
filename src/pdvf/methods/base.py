"""What a method is: it is trained on training environments, then plays one episode where it never was (section 4.3).

Everything a trained method needs is an `Agent`, a pytree that is written for one episode; seeds, environments and
episodes are leading axes added by `vmap`, and one function (`play.play`) plays them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import equinox as eqx
import jax

from pdvf.config import Config
from pdvf.core.arrays import Array
from pdvf.core.staged import OneStage, Staged
from pdvf.engines.rollout import Feedback, Transitions
from pdvf.paper.pipeline import Problem

Memory = TypeVar("Memory")
Inputs = Mapping[str, Any]
"""Artefacts of the run by name, such as `policies` and `adapter`."""


class Hidden(NamedTuple):
    """What nobody may know: the place of the environment among all [] and its context [c]."""

    environment: Array
    context: Array


class Agent(Protocol):
    """A trained method in one episode. Its memory is any pytree, of the same shapes throughout."""

    def begin_episode(self, observation: Array, hidden: Hidden | None) -> Any:
        """The memory at the start; `hidden` is None unless the method is one that is told."""
        ...

    def act(self, memory: Any, observation: Array, feedback: Feedback) -> tuple[Array, Any]:
        """Scaled action [a] and the memory after it, at every step."""
        ...

    def adapt(self, memory: Any, transitions: Transitions) -> Any:
        """The memory after the N_d probing steps: called once in an episode, with these steps and no others."""
        ...


class Adapting(Agent, Protocol):
    """An agent that infers the dynamics, and on whose actions the past has an influence by that alone.

    `act` is `learn` followed by `decide`.
    """

    def learn(self, memory: Any, observation: Array, feedback: Feedback) -> Any:
        """The memory that the next action is decided by."""
        ...

    def decide(self, memory: Any, observation: Array) -> Array:
        """Scaled action [a]."""
        ...

    def code(self, memory: Any) -> Array:
        """What it takes the dynamics for [d]."""
        ...

    def out_of_distribution(self, memory: Any) -> Array:
        """How unlike training the episode is so far []: up to about 1 it is not."""
        ...


class KeepsMemory(eqx.Module):
    """An agent for which the end of the probing steps is a step as any other."""

    def adapt(self, memory: Memory, transitions: Transitions) -> Memory:
        """Keeps the memory as it is."""
        return memory


def one_policy(config: Config) -> int:
    """What most methods train for each seed."""
    return 1


Training = Staged[Any]
"""How agents come about, stage by stage; it leaves them [S, ...], one for each seed, as `agent_artefact(name)`."""


class Look(NamedTuple):
    """How tables and figures show a method."""

    label: str = ""
    """Its name in the paper, ours with *; none for the name it goes by."""
    colour: str = "#444444"
    place: int = 100
    """Among all methods: the paper's in the order of its figures, then ours."""


GREY = Look()


@dataclass(frozen=True)
class Method:
    """A row of the comparison."""

    name: str
    text: str
    """One line for people."""
    train: Callable[[Problem, Inputs, Array], Training]
    """From the problem, the artefacts in `needs` and a key to a training."""
    needs: tuple[str, ...] = ()
    """Artefacts of the run; `agent_artefact(name)` asks for another method."""
    untrained: Callable[[Problem], Any] | None = None
    """Agents [S, ...] of the right shapes from the configuration alone, by which trained ones are read from their file;
    None where those that the training begins with, given no artefacts, will do."""
    privileged: bool = False
    """Whether episodes begin with the hidden environment: only upper bounds may be."""
    mirror: Callable[[Any], Any] | None = None
    """For the protocol `peek`: agents that try the other sign; the better return of the two counts."""
    every_run: bool = False
    """Whether it is played in every run, compared or not: there is nothing to train for it."""
    adapting: bool = False
    """Whether its agents are `Adapting`: then it is measured how far they adapt (`experiment.adaptation`)."""
    variant_of: str = ""
    """A method whose models it plays in another way: the k-th seeds of both have the k-th model, and are paired."""
    rewarded: bool = False
    """Whether its agents need the reward of every step, which a robot does not have."""
    policies: Callable[[Config], int] = lambda config: 0
    """Policies that its training trains for each seed, besides those of phase 1: what `pdvf plan` counts."""
    ensemble: bool = False
    """Whether `train` gives a `PolicyEnsemble` of at least a row a seed, which can be cut into parts; it needs
    no artefacts."""
    look: Look = GREY

    def skeleton(self, problem: Problem) -> Any:
        """Untrained agents [S, ...]."""
        return self.untrained(problem) if self.untrained else begun(self.train(problem, {}, jax.random.key(0)))


def begun(training: Training) -> Any:
    """The agents that a training begins with."""
    return training.finish(training.start())[agent_artefact(training.name)]


def methods_in(module: Any) -> list[Method]:
    """The methods that a module makes."""
    return [value for value in vars(module).values() if isinstance(value, Method)]


AGENT, RETURNS = "agent-", "returns-"


def agent_artefact(name: str) -> str:
    """The artefact that holds a method's agents."""
    return AGENT + name


def returns_artefact(name: str) -> str:
    """The artefact that holds the returns of a method's episodes."""
    return RETURNS + name


class AtOnce(OneStage):
    """A training of one stage: `agents()` gives the agents [S, ...] and makes so many environment steps."""

    def __init__(self, name: str, agents: Callable[[], Any], steps: int = 0) -> None:
        super().__init__(name, lambda: ({agent_artefact(name): agents()}, {"steps": float(steps)} if steps else {}))
