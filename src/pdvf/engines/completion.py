"""Completion: environments that nobody simulates, as training environments with a learned correction.

`CompletedFamily` has such environments among its training environments: nobody who trains there need know.

With a code y for each environment and a learned effect G of the code on a step, the environment y' near a training
environment e moves from s to

    s' = sim_e(s, a) + G(s, a) (y' - y_e)

Reward, end and observation are the task's own on the corrected state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array, Scaler
from pdvf.engines.base import add_to_state, observe, outcome, settable
from pdvf.engines.rollout import where
from pdvf.engines.wrappers import WrappedFamily, of_inner
from pdvf.families.base import Family, GuardedFamily, Outcome, Split, State

Effect = Callable[[Array, Array], Array]
"""From an observation [o] and a scaled action [a] to the change of the state's numbers with the code [m, K]."""


@dataclass(frozen=True)
class CompletedFamily(WrappedFamily):
    """A family with synthesised environments after its training environments; contexts are those of `Completed`."""

    made: np.ndarray  # [N, c + K]
    observe = of_inner("observe")
    reward = of_inner("reward")
    terminated = of_inner("terminated")

    @property
    def context_names(self) -> tuple[str, ...]:
        """The family's own, then one for each number of the code's offset."""
        own = self.inner.context_names
        return (*own, *(f"offset_{k + 1}" for k in range(self.made.shape[1] - len(own))))

    def train(self, seed: int) -> Split:
        """Training environments, then synthesised ones, whose numbers follow the largest of all."""
        own = self.inner.train(seed)
        last = max(*own.numbers, *self.inner.test(seed).numbers)
        numbers = (*own.numbers, *range(last + 1, last + 1 + len(self.made)))
        return Split(numbers, np.concatenate([self._padded(own.contexts), self.made]))

    def test(self, seed: int) -> Split:
        """The family's own."""
        own = self.inner.test(seed)
        return Split(own.numbers, self._padded(own.contexts))

    def _padded(self, contexts: np.ndarray) -> np.ndarray:
        missing = self.made.shape[1] - contexts.shape[1]
        return np.concatenate([contexts, np.zeros((len(contexts), missing), contexts.dtype)], axis=1)


class GuardedCompletedFamily(CompletedFamily):
    """The same where the family can tell how near the end is."""

    danger = of_inner("danger")


def complete_family(family: Family, made: np.ndarray) -> CompletedFamily:
    """A family with synthesised environments of these contexts [N, c + K]."""
    return (GuardedCompletedFamily if isinstance(family, GuardedFamily) else CompletedFamily)(family, made)


@dataclass(frozen=True)
class Completed:
    """Takes contexts [n, c + K]: that of a training environment, and how far the code is from its code.

    Where that offset is 0 an environment is the engine's own, bit by bit; it has to be 0 where the engine cannot be put
    into any state.
    """

    inner: Any  # Engine, mostly a SettableEngine
    effect: Effect
    code_size: int
    seen: Family | None = None
    task_states = of_inner("task_states")
    from_task_states = of_inner("from_task_states")

    @property
    def family(self) -> Family:
        """The inner family, or the one that it is seen as."""
        return self.seen or self.inner.family

    def reset(self, keys: Array, contexts: Array) -> tuple[State, Array]:
        """States and observations [n, o] at the start of an episode, as in the training environment."""
        return self.inner.reset(keys, contexts[:, : -self.code_size])

    def step(self, contexts: Array, states: State, actions: Array) -> tuple[State, Outcome]:
        """States and outcomes after actions [n, a]."""
        real, offset = contexts[:, : -self.code_size], contexts[:, -self.code_size :]
        if not settable(self.inner):
            return self.inner.step(real, states, actions)
        box = self.family.action
        actions = jnp.clip(actions, box.low, box.high)
        simulated, seen = self.inner.step(real, states, actions)
        scaled = Scaler.from_box(box).scale(actions)
        effect = jax.vmap(self.effect)(observe(self.inner, states), scaled)
        corrected = add_to_state(self.inner, simulated, jnp.einsum("nmk,nk->nm", effect, offset))
        own = jnp.all(offset == 0.0, axis=-1)

        def choose(real: Any, made: Any) -> Any:
            return jax.tree.map(lambda x, y: where(own, x, y), real, made)

        return choose(simulated, corrected), choose(seen, outcome(self.inner, states, actions, corrected))
