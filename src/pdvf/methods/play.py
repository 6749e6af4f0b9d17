"""The one evaluation of every method: whole episodes, the first N_d steps of which are for probing (section 3.5)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pdvf.core.arrays import Array, Scaler
from pdvf.engines.base import Engine
from pdvf.engines.rollout import Episodes, begin, where
from pdvf.methods.base import Agent, Feedback, Hidden, Transitions


def play(engine: Engine, agent: Agent, contexts: Array, hidden: Hidden | None, key: Array) -> Array:
    """Returns [n] of one episode of an agent in each context [n, c]; probing steps count.

    `hidden` [n, ...] reaches the agent, if it is given; `contexts` reach the simulator alone. The key decides how
    episodes start, so with the same key every method meets the same starts.
    """
    episodes = begin(engine, contexts, key)
    n, probe_steps, family = contexts.shape[0], engine.family.probe_steps, engine.family
    in_axes = (0, None) if hidden is None else (0, 0)
    memory = jax.vmap(agent.begin_episode, in_axes=in_axes)(episodes.observation, hidden)
    feedback = Feedback(jnp.zeros((n, family.action.size)), jnp.zeros(n), jnp.ones(n))
    carry = (episodes, memory, feedback)
    carry, probed = _steps(engine, agent, contexts, carry, probe_steps, record=True)
    transitions = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), probed)
    carry = (carry[0], jax.vmap(agent.adapt)(carry[1], transitions), carry[2])
    carry, _ = _steps(engine, agent, contexts, carry, family.horizon - probe_steps, record=False)
    return carry[0].returns


def _steps(engine: Engine, agent: Agent, contexts: Array, carry: Any, steps: int, record: bool) -> tuple[Any, Any]:
    """Goes on for some steps; an episode that has ended stays as it is."""
    scaler = Scaler.from_box(engine.family.action)

    def step(carry, _):
        episodes, memory, feedback = carry
        action, memory = jax.vmap(agent.act)(memory, episodes.observation, feedback)
        action = jnp.clip(action, -1.0, 1.0)
        simulator, outcome = engine.step(contexts, episodes.simulator, scaler.unscale(action))
        alive = episodes.alive
        following = Episodes(
            jax.tree.map(lambda new, old: where(alive, new, old), simulator, episodes.simulator),
            where(alive, outcome.observation, episodes.observation),
            alive & ~outcome.terminated,
            episodes.returns + jnp.where(alive, outcome.reward, 0.0),
        )
        made = Transitions(episodes.observation, action, outcome.reward, following.observation, alive)
        feedback = Feedback(action, outcome.reward, jnp.zeros_like(feedback.first))
        return (following, memory, feedback), made if record else None

    return jax.lax.scan(step, carry, None, length=steps)


def play_everywhere(
    engine: Engine, agents: Any, everywhere: Array, episodes: int, privileged: bool, key: Array, peek: Any = None
) -> dict[str, Array]:
    """Returns [S, E, J] of agents [S, ...]: J episodes in each context [E, c], under the protocols that there are."""
    environments = jnp.repeat(jnp.arange(everywhere.shape[0]), episodes)
    contexts = jnp.asarray(everywhere)[environments]
    hidden = Hidden(environments, contexts) if privileged else None

    def returns(agents: Any) -> Array:
        played = jax.vmap(lambda agent: play(engine, agent, contexts, hidden, key))(agents)
        return played.reshape(played.shape[0], everywhere.shape[0], episodes)

    honest = returns(agents)
    if peek is None:
        return {"honest": honest}
    return {"honest": honest, "peek": jnp.maximum(honest, returns(peek))}
