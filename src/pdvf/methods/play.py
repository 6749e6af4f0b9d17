"""The one evaluation of every method: whole episodes, the first N_d steps of which are for probing (section 3.5)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array
from pdvf.engines.base import Engine
from pdvf.engines.rollout import Act, Episodes, begin, play
from pdvf.methods.base import Agent, Hidden


def begin_agent(engine: Engine, agent: Agent, contexts: Array, hidden: Hidden | None, key: Array) -> Episodes:
    """Episodes of an agent at their start, one in each context [n, c].

    `hidden` [n, ...] reaches the agent, if it is given; `contexts` reach the simulator alone. The key decides how
    episodes start, so with the same key every method meets the same starts.
    """
    episodes = begin(engine, contexts, key)
    return episodes._replace(memory=jax.vmap(agent.begin_episode)(episodes.observation, hidden))


def acting_agent(agent: Agent) -> Act:
    """Acts as the agent does in every episode."""
    return lambda memory, observation, feedback, key: jax.vmap(agent.act)(memory, observation, feedback)


def play_agent(engine: Engine, agent: Agent, contexts: Array, hidden: Hidden | None, key: Array) -> Array:
    """Returns [n] of one episode of an agent in each context [n, c]; probing steps count."""
    probe_steps, act = engine.family.probe_steps, acting_agent(agent)
    episodes = begin_agent(engine, agent, contexts, hidden, key)
    episodes, probed = play(engine, contexts, episodes, act, None, probe_steps)
    transitions = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), probed)
    episodes = episodes._replace(memory=jax.vmap(agent.adapt)(episodes.memory, transitions))
    rest = engine.family.horizon - probe_steps
    return play(engine, contexts, episodes, act, None, rest, record=False)[0].returns


def play_everywhere(
    engine: Engine, agents: Any, everywhere: Array, episodes: int, privileged: bool, key: Array, peek: Any = None
) -> dict[str, Array]:
    """Returns [S, E, J] of agents [S, ...]: J episodes in each context [E, c], under the protocols that there are."""
    environments = jnp.repeat(jnp.arange(everywhere.shape[0]), episodes)
    contexts = jnp.asarray(everywhere)[environments]
    hidden = Hidden(environments, contexts) if privileged else None

    def returns(agents: Any) -> Array:
        played = jax.vmap(lambda agent: play_agent(engine, agent, contexts, hidden, key))(agents)
        return played.reshape(played.shape[0], everywhere.shape[0], episodes)

    honest = returns(agents)
    if peek is None:
        return {"honest": honest}
    return {"honest": honest, "peek": jnp.maximum(honest, returns(peek))}
