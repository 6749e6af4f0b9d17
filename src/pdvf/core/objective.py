"""What an episode is worth, and several together: nothing else adds up rewards.

Another objective is another class like `Return`. A family that is played for it has `objective = ThatClass`; then
policies are chosen, values learned and results reported by it. PPO itself learns from the rewards one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import jax.numpy as jnp

from pdvf.core.arrays import Array


class Objective(Protocol):
    """The scores of n episodes under way, a pytree of arrays [n, ...]."""

    @classmethod
    def start(cls, n: int) -> Self:
        """Scores before the first step."""
        ...

    def add(self, reward: Array, alive: Array | bool) -> Self:
        """Scores after a step with rewards [n]; those of episodes that are not alive [n] stay as they are."""
        ...

    @property
    def worth(self) -> Array:
        """What each episode is worth [n] if it ends here."""
        ...

    @staticmethod
    def summary(worths: Array, axis: int) -> Array:
        """What the episodes along an axis are worth together, for the choice among policies."""
        ...


class Return(NamedTuple):
    """The sum of rewards; over episodes the mean."""

    worth: Array

    @classmethod
    def start(cls, n: int) -> Return:
        """Nothing."""
        return cls(jnp.zeros(n))

    def add(self, reward: Array, alive: Array | bool) -> Return:
        """One more reward."""
        return Return(self.worth + jnp.where(alive, reward, 0.0))

    @staticmethod
    def summary(worths: Array, axis: int) -> Array:
        """The mean."""
        return jnp.mean(worths, axis=axis)


@runtime_checkable
class HasObjective(Protocol):
    """A family whose episodes are worth something other than their return."""

    @property
    def objective(self) -> Any:
        """The class of its scores."""
        ...


def objective_of(family: object) -> Any:
    """The `Objective` of a family: its own, or the return."""
    return family.objective if isinstance(family, HasObjective) else Return
