"""One agent that adapts and, beside it, the same one that does not, in a hidden context that may change at any time.

Nothing is drawn here, and no page is needed: `pdvf.live.page` shows a `LiveSession`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from pdvf.core.objective import objective_of
from pdvf.core.validation import ConfigError
from pdvf.deploy.belief_runtime import BeliefAdapter
from pdvf.deploy.model_format import read
from pdvf.deploy.runtime import Adapter
from pdvf.deploy.value_runtime import ValueAdapter
from pdvf.engines.gym_envs import compiled_functions
from pdvf.families.base import Dial, DialledFamily, Family, HostFamily, MujocoFamily
from pdvf.families.custom import by_name
from pdvf.families.env_process import said
from pdvf.families.mujoco import call_user

SECONDS = 0.05
"""Of a step, where a family does not say."""
REFERENCE_STEPS, REFERENCE_EPISODES = 256, 16
"""What the truth is measured with: steps that a belief takes in, and probings whose z_d are averaged."""


class Simulation(Protocol):
    """One environment of a family."""

    settable: bool
    """Whether the context may change within an episode."""
    seconds: float
    """How long a step takes, in the environment's own time."""

    def reset(self, context: np.ndarray, seed: int) -> np.ndarray:
        """The first observation [o] of an episode in a context [c]."""
        ...

    def step(self, context: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Observation [o], reward and end of the task after an action [a]."""
        ...

    @property
    def shown(self) -> np.ndarray | str:
        """What there is to draw: positions [nq] of a MuJoCo model, a picture [h, w, 3], else the observation [o].

        Words where there is nothing.
        """
        ...

    def close(self) -> None:
        """Lets go of what it holds."""
        ...


class ArraySimulation:
    """A family whose state is a pytree: its own JAX code, or MuJoCo in C and its task in JAX."""

    settable = True

    def __init__(self, family: Any) -> None:
        self._mujoco = isinstance(family, MujocoFamily)
        self.seconds = getattr(family, "control_step", SECONDS)
        self._functions = compiled_functions(family)

    def reset(self, context: np.ndarray, seed: int) -> np.ndarray:
        """The first observation."""
        self._state, observed = self._functions.reset(context, np.uint32(seed))
        self._observation = np.asarray(observed)
        return self._observation

    def step(self, context: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """One step; a context is an argument like any other."""
        self._state, observed, reward, ended = self._functions.step(context, self._state, action)
        self._observation = np.asarray(observed)
        return self._observation, float(reward), bool(ended)

    @property
    def shown(self) -> np.ndarray:
        """Positions of a model, or the observation."""
        return np.asarray(self._state.physics.qpos, float) if self._mujoco else self._observation

    def close(self) -> None:
        """Holds nothing."""


class HostSimulation:
    """An environment of Gymnasium, which keeps its state to itself: another context begins another episode."""

    settable = False

    def __init__(self, family: Any) -> None:
        self._family, self._context, self.seconds = family, np.zeros(0), SECONDS
        self._env: Any = None

    def reset(self, context: np.ndarray, seed: int) -> np.ndarray:
        """The first observation; the environment is made anew where the context is another."""
        if self._env is None or not np.array_equal(context, self._context):
            self.close()
            named = by_name(self._family.context_names, context)
            self._env = call_user(self._family, f"make_env in context {named}", self._family.make, named)
            if "rgb_array" in self._env.metadata.get("render_modes", ()):
                self._env.unwrapped.render_mode = "rgb_array"
            self.seconds = 1.0 / float(self._env.metadata.get("render_fps") or 1.0 / SECONDS)
        self._context = context
        observed, _ = call_user(self._family, "reset", partial(self._env.reset, seed=seed))
        return np.asarray(observed)

    def step(self, context: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """One step, in the context of the episode's start."""
        del context
        observed, reward, terminated, *_ = call_user(self._family, "step", self._env.step, action)
        return np.asarray(observed), float(reward), bool(terminated)

    @property
    def shown(self) -> np.ndarray | str:
        """A picture, where the environment draws one."""
        if "rgb_array" not in self._env.metadata.get("render_modes", ()):
            return "draws no picture"
        try:
            return np.asarray(self._env.render())
        except Exception as error:  # often a library that is not installed: the episode can do without
            return f"draws no picture{said(error)}"

    def close(self) -> None:
        """Closes the environment."""
        if self._env is not None:
            self._env.close()
            self._env = None


def make_simulation(family: Family) -> Simulation:
    """What simulates one environment of a family."""
    return HostSimulation(family) if isinstance(family, HostFamily) else ArraySimulation(family)


def dials_of(family: Family) -> tuple[Dial, ...]:
    """How contexts are set by hand: as the family says, or over what its environments span."""
    if isinstance(family, DialledFamily):
        return family.dials
    contexts = np.concatenate([family.train(0).contexts, family.test(0).contexts]).astype(float)
    spans = zip(family.context_names, contexts.min(axis=0), contexts.max(axis=0), contexts.mean(axis=0), strict=True)
    return tuple(Dial(name, float(low), float(high), float(mean)) for name, low, high, mean in spans)


class Finished(NamedTuple):
    """What a pair of episodes in one context was worth."""

    context: np.ndarray
    agent: float
    ghost: float


def load_ghost(file: Path) -> Adapter:
    """The same agent without adapting: one policy for all environments.

    PD-VF plays the policy that W expects most of on average over the training environments, whatever it has probed.
    PD-VF-plus acts as in the middle of the training environments, whatever it has seen. Its prior, that it could be
    anywhere, would be no fair rival: in training it lasts for a few steps only, and Ant-wind's policy hardly walks
    under it (`benchmarks/ghost.py`). Any other agent forgets at every step what it has seen.
    """
    ghost = Adapter.load(file)
    if isinstance(ghost, BeliefAdapter):
        ghost.adapting = False
        return ghost
    if isinstance(ghost, ValueAdapter):
        value, known = ghost, read(file)[1]["train_z_d"]

        def select(s0: np.ndarray, z_d: np.ndarray) -> tuple[np.ndarray, float]:
            del z_d
            mean = np.mean([value.matrix(s0, z) for z in known], axis=0)
            return np.linalg.eigh(mean)[1][:, -1], float("nan")

        ghost.select = select
        return ghost
    act = ghost.act

    def forget_and_act(observation: Any) -> np.ndarray:
        ghost.reset(observation)
        return act(observation)

    ghost.act = forget_and_act
    return ghost


@dataclass
class Player:
    """An agent in an environment of its own."""

    adapter: Adapter
    simulation: Simulation
    objective: Any
    horizon: int

    def begin(self, context: np.ndarray, seed: int) -> None:
        """Starts an episode."""
        self.observation = self.simulation.reset(context, seed)
        self.adapter.reset(self.observation)
        self.action = np.zeros(self.adapter.action_size, np.float32)
        self._score, self.over = self.objective.start(1), False
        self.worths = [0.0]

    def step(self, context: np.ndarray) -> None:
        """One step, unless the episode is over."""
        if self.over:
            return
        self.action = self.adapter.act(self.observation)
        self.observation, reward, terminated = self.simulation.step(context, self.action)
        self._score = self._score.add(np.float32(reward), True)
        self.worths.append(float(self._score.worth[0]))
        self.over = terminated or self.steps >= self.horizon

    @property
    def worth(self) -> float:
        """What the episode is worth so far."""
        return self.worths[-1]

    @property
    def steps(self) -> int:
        """Steps of the episode so far."""
        return len(self.worths) - 1


class LiveSession:
    """Pairs of episodes, one after the other: the agent and its ghost, which does not adapt, from the same start.

    `set_context` may be called at any time and by any thread, everything else by one thread. It acts from the next step
    on. An agent with a belief is told that something has changed, not what, and begins to form another one. PD-VF
    adapts at the start of an episode, and environments of Gymnasium cannot change within one: there another begins.
    """

    def __init__(self, family: Family, file: Path, seed: int = 0) -> None:
        self.family, self.file = family, file
        self.dials = dials_of(family)
        self.agent, self.ghost = self._player(True), self._player(False)
        self.finished: list[Finished] = []
        self.episode = seed
        unseen = family.test(0).contexts
        self.context = self._wanted = self.usual_context(unseen[len(unseen) // 2])
        self.begin()

    def _player(self, adapting: bool) -> Player:
        adapter = Adapter.load(self.file) if adapting else load_ghost(self.file)
        return Player(adapter, make_simulation(self.family), objective_of(self.family), self.family.horizon)

    def usual_context(self, context: np.ndarray) -> np.ndarray:
        """The context [c] of an environment, with the usual values of dials that go beyond it."""
        usual = [dial.usual for dial in self.dials]
        return np.array([*context, *usual[len(context) :]], np.float32)

    def set_context(self, context: np.ndarray) -> None:
        """Changes what is hidden, from the next step on."""
        wanted = np.array(context, np.float32)
        if wanted.shape != (len(self.dials),) or not np.isfinite(wanted).all():
            names = [dial.name for dial in self.dials]
            raise ConfigError(f"the context is {context!r}, expected a finite number for each of {names}")
        self._wanted = wanted

    def begin(self) -> None:
        """The next pair of episodes."""
        self.context = self._wanted
        self.episode += 1
        for player in (self.agent, self.ghost):
            player.begin(self.context, self.episode)

    @property
    def restarts(self) -> bool:
        """Whether another context begins another episode."""
        return isinstance(self.agent.adapter, ValueAdapter) or not self.agent.simulation.settable

    def step(self) -> None:
        """One step of both; or the start of the next pair, after the end of both or where `restarts` asks for it."""
        changed = not np.array_equal(self._wanted, self.context)
        if self.over or (changed and self.restarts):
            return self.begin()
        if changed:
            self.context = self._wanted
            self.agent.adapter.reset(self.agent.observation)
        self.agent.step(self.context)
        self.ghost.step(self.context)
        if self.over:
            self.finished.append(Finished(self.context, self.agent.worth, self.ghost.worth))

    @property
    def control_step(self) -> float:
        """Seconds of a step."""
        return self.agent.simulation.seconds

    @property
    def over(self) -> bool:
        """Whether both episodes have ended."""
        return self.agent.over and self.ghost.over

    def close(self) -> None:
        """Ends the simulations."""
        self.agent.simulation.close()
        self.ghost.simulation.close()


class Estimate(NamedTuple):
    """What an agent believes about the dynamics: a point [k], and how sure it is [k, k], where it knows."""

    mean: np.ndarray
    covariance: np.ndarray | None


def estimate(adapter: Adapter) -> Estimate | None:
    """The belief of PD-VF-plus, or the z_d of PD-VF; None while there is none."""
    if isinstance(adapter, BeliefAdapter):
        return Estimate(adapter.mean, adapter.covariance)
    z_d = adapter.z_d if isinstance(adapter, ValueAdapter) else None
    return None if z_d is None else Estimate(z_d, None)


def measure_truth(family: Family, file: Path, context: np.ndarray) -> np.ndarray | None:
    """Where a context lies among what the agent can believe [k]: its own estimate from far more steps than it has.

    Of PD-VF the mean z_d over many probings, of PD-VF-plus the mean of the belief after a long episode.
    """
    adapter, simulation = Adapter.load(file), make_simulation(family)
    belief = isinstance(adapter, BeliefAdapter)
    steps = min(REFERENCE_STEPS, family.horizon) if belief else adapter.probe_steps + 1
    found = []
    player = Player(adapter, simulation, objective_of(family), steps)
    for seed in range(1 if belief else REFERENCE_EPISODES):
        player.begin(context, seed)
        while not player.over:
            player.step(context)
        if (made := estimate(adapter)) is not None:
            found.append(made.mean)
    simulation.close()
    return np.mean(found, axis=0) if found else None
