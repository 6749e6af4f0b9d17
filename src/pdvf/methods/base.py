"""What a method is: it is trained on training environments, then plays one episode where it never was (section 4.3).

Everything a trained method needs is an `Agent`, a pytree that is written for one episode; seeds, environments and
episodes are leading axes added by `vmap`, and one function (`play.play`) plays them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import equinox as eqx

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


class KeepsMemory(eqx.Module):
    """An agent for which the end of the probing steps is a step as any other."""

    def adapt(self, memory: Memory, transitions: Transitions) -> Memory:
        """Keeps the memory as it is."""
        del transitions
        return memory


Training = Staged[Any]
"""How agents come about, stage by stage; it leaves them [S, ...], one for each seed, as `agent_artefact(name)`."""


@dataclass(frozen=True)
class Method:
    """A row of the comparison."""

    name: str
    text: str
    """One line for people."""
    train: Callable[[Problem, Inputs, Array], Training]
    """From the problem, the artefacts in `needs` and a key to a training; it may be traced without values."""
    needs: tuple[str, ...] = ()
    """Artefacts of the run; `agent_artefact(name)` asks for another method."""
    privileged: bool = False
    """Whether episodes begin with the hidden environment: only upper bounds may be."""
    mirror: Callable[[Any], Any] | None = None
    """For the protocol `peek`: agents that try the other sign; the better return of the two counts."""
    ensemble: bool = False
    """Whether `train` gives a `core.staged.Ensemble` of at least a row a seed, which can be cut into parts."""


AGENT, RETURNS = "agent-", "returns-"


def agent_artefact(name: str) -> str:
    """The artefact that holds a method's agents."""
    return AGENT + name


def returns_artefact(name: str) -> str:
    """The artefact that holds the returns of a method's episodes."""
    return RETURNS + name


class AtOnce(OneStage):
    """A training of one stage: `agents()` gives the agents [S, ...]."""

    def __init__(self, name: str, agents: Callable[[], Any]) -> None:
        super().__init__(name, lambda: ({agent_artefact(name): agents()}, {}))
