"""Completion: environments that nobody simulates, as training environments with a learned correction.

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

from pdvf.core.arrays import Array, Scaler
from pdvf.engines.base import SettableEngine
from pdvf.engines.rollout import where
from pdvf.families.base import Family, Outcome, State

Effect = Callable[[Array, Array], Array]
"""From an observation [o] and a scaled action [a] to the change of the state's numbers with the code [m, K]."""


@dataclass(frozen=True)
class Completed:
    """Takes contexts [n, c + K]: that of a training environment, and how far the code is from its code.

    Where that offset is 0 an environment is the engine's own, bit by bit.
    """

    inner: SettableEngine
    effect: Effect
    code_size: int

    @property
    def family(self) -> Family:
        """The inner family."""
        return self.inner.family

    def reset(self, keys: Array, contexts: Array) -> tuple[State, Array]:
        """States and observations [n, o] at the start of an episode, as in the training environment."""
        return self.inner.reset(keys, contexts[:, : -self.code_size])

    def step(self, contexts: Array, states: State, actions: Array) -> tuple[State, Outcome]:
        """States and outcomes after actions [n, a]."""
        real, offset = contexts[:, : -self.code_size], contexts[:, -self.code_size :]
        box = self.family.action
        actions = jnp.clip(actions, box.low, box.high)
        simulated, outcome = self.inner.step(real, states, actions)
        scaled = Scaler.from_box(box).scale(actions)
        effect = jax.vmap(self.effect)(self.inner.observe(states), scaled)
        corrected = self.inner.add_to_state(simulated, jnp.einsum("nmk,nk->nm", effect, offset))
        own = jnp.all(offset == 0.0, axis=-1)

        def choose(real: Any, made: Any) -> Any:
            return jax.tree.map(lambda x, y: where(own, x, y), real, made)

        return choose(simulated, corrected), choose(outcome, self.inner.outcome(states, actions, corrected))
