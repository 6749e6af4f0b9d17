"""Is it adapting? Episodes that answer three doubts about an agent that infers the dynamics.

1. *Identification*: what it infers after so many steps tells contexts apart that the readout has not seen.
2. *Choice*: in one and the same observation, what it infers in different environments makes it act differently.
3. *Payoff*: it loses return when it acts by what was inferred in another environment at the same time.

`reports.adaptation` says what follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array
from pdvf.core.devices import shard_over_devices
from pdvf.core.staged import OneStage
from pdvf.engines import Engine
from pdvf.engines.rollout import Episodes, Feedback, play
from pdvf.methods.base import Adapting, Method
from pdvf.methods.play import begin_agent
from pdvf.paper.problem import Problem, Stream

ADAPTATION = "adaptation-"
STEPS = (16, 64)
"""Steps after which it is asked what the dynamics are, beside N_d, where episodes are longer."""
EPISODES = 8
"""Episodes in each environment."""
AXES = {
    "steps": ("whole number", "k"),
    "train_count": ("whole number", ""),
    "contexts": ("number", "Ec"),
    "codes": ("number", "SkEJd"),
    "choice": ("number", "S"),
    "own": ("number", "STJ"),
    "swapped": ("number", "STJ"),
    "out_of_distribution": ("any number", "SEJ"),
}


def adaptation_artefact(name: str) -> str:
    """The artefact that says how a method adapts."""
    return ADAPTATION + name


class Asked(NamedTuple):
    """The memory of n agents, and what was asked of them at some steps."""

    agent: Any  # [n, ...]
    time: Array  # [n] steps made
    codes: Array  # [n, k, d] after so many steps, or at the end where that came earlier
    observation: Array  # [n, o] at the last of these steps


def play_asking(
    engine: Engine, agent: Adapting, contexts: Array, by: Array, steps: Sequence[int], key: Array
) -> Episodes:
    """Whole episodes in contexts [n, c], row i acting by what row `by[i]` has inferred; the memory is `Asked`."""
    asked, probe_steps = jnp.asarray(steps), engine.family.probe_steps

    def act(memory: Asked, observation: Array, feedback: Feedback, key: None) -> tuple[Array, Asked]:
        learned = jax.vmap(agent.learn)(memory.agent, observation, feedback)
        waiting = memory.time[:, None] <= asked  # [n, k]
        codes = jnp.where(waiting[..., None], jax.vmap(agent.code)(learned)[:, None], memory.codes)
        seen = jnp.where(waiting[:, -1:], observation, memory.observation)
        action = jax.vmap(agent.decide)(jax.tree.map(lambda x: x[by], learned), observation)
        return action, Asked(learned, memory.time + 1, codes, seen)

    begun = begin_agent(engine, agent, contexts, None, key)
    codes = jnp.repeat(jax.vmap(agent.code)(begun.memory)[:, None], len(steps), axis=1)
    memory = Asked(begun.memory, jnp.zeros(contexts.shape[0], jnp.int32), codes, begun.observation)
    episodes, probed = play(engine, contexts, begun._replace(memory=memory), act, None, probe_steps)
    transitions = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), probed)
    memory = episodes.memory._replace(agent=jax.vmap(agent.adapt)(episodes.memory.agent, transitions))
    rest = engine.family.horizon - probe_steps
    return play(engine, contexts, episodes._replace(memory=memory), act, None, rest, record=False)[0]


def others(environments: int, episodes: int) -> np.ndarray:
    """For each row of [E * J] one of another environment, with the same number; every other environment in turn."""
    e, j = np.divmod(np.arange(environments * episodes), episodes)
    return ((e + 1 + j % max(environments - 1, 1)) % environments) * episodes + j


def measure(problem: Problem, method: Method, agents: Any, wanted: Sequence[int] = STEPS) -> OneStage:
    """Plays agents [S, ...] twice in all environments: by what they infer, and misled in the training environments.

    After N_d and the `wanted` numbers of steps, where episodes are longer, it is asked what the dynamics are.
    """
    engine, train = problem.engine, problem.contexts.shape[0]
    environments, family = problem.judged.shape[0], engine.family
    steps = sorted({family.probe_steps, *(k for k in wanted if k < family.horizon)})
    own = np.arange(environments * EPISODES)
    by = np.stack([own, np.concatenate([others(train, EPISODES), own[train * EPISODES :]])])
    contexts = np.repeat(problem.judged, EPISODES, axis=0)

    def one(key: Array, agent: Adapting) -> dict[str, Array]:
        def played(by: Array) -> tuple[Asked, Array]:
            episodes = play_asking(engine, agent, jnp.asarray(contexts), by, steps, key)
            return episodes.memory, episodes.returns

        memory, returns = jax.lax.map(played, jnp.asarray(by))  # one program for both
        memory = jax.tree.map(lambda x: x[0], memory)
        here = train * EPISODES
        inferred = jax.tree.map(lambda x: x[:here:EPISODES], memory.agent)  # of one episode an environment
        decide = jax.vmap(jax.vmap(agent.decide, in_axes=(None, 0)), in_axes=(0, None))
        actions = jnp.clip(decide(inferred, memory.observation[:here]), -1.0, 1.0)  # [E, n, a]
        spread = jnp.sum(jnp.var(actions, axis=(0, 1)))
        own, swapped = returns.reshape(2, environments, EPISODES)
        codes = jnp.moveaxis(memory.codes, 1, 0)
        return {
            "codes": codes.reshape(len(steps), environments, EPISODES, -1),
            "choice": jnp.sum(jnp.mean(jnp.var(actions, axis=0), axis=0)) / jnp.maximum(spread, 1e-12),
            "own": own[:train],
            "swapped": swapped[:train],
            "out_of_distribution": jax.vmap(agent.out_of_distribution)(memory.agent).reshape(environments, EPISODES),
        }

    def play_them() -> tuple[dict[str, Any], dict[str, Array]]:
        all_of_them = shard_over_devices(lambda key, agents: jax.vmap(partial(one, key))(agents))
        made = all_of_them(problem.key(Stream.ADAPTATION), agents)
        seeds = made["choice"].shape[0]
        played = float(2 * seeds * environments * EPISODES * family.horizon)
        fixed = {"steps": jnp.asarray(steps), "train_count": jnp.asarray(train), "contexts": problem.judged}
        return {adaptation_artefact(method.name): fixed | made}, {"evaluation_steps": jnp.asarray(played)}

    return OneStage(adaptation_artefact(method.name), play_them)
