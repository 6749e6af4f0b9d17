"""Adapt your own environment: Gymnasium's Pendulum-v1 whose gravity, mass and motor are hidden.

pdvf check-family examples/pendulum.py:family            are the environments fit for training?
pdvf run examples/pendulum.py:family --preset quick --out runs/pendulum
pdvf compare examples/pendulum.py:family --preset quick --out runs/pendulum --methods pd-vf ppo-all best-single
pdvf export runs/pendulum pendulum.pdvf --family examples/pendulum.py:family    a file that adapts without JAX
"""

import itertools

import gymnasium

from pdvf.families import GymFamily


class HiddenMotor(gymnasium.ActionWrapper):
    """A motor whose gain, and even its direction, the agent does not know."""

    def __init__(self, env, gain):
        super().__init__(env)
        self.gain = gain

    def action(self, action):
        """The torque that arrives."""
        return self.gain * action


def make_env(context):
    """A pendulum with this context: {"gravity": ..., "mass": ..., "gain": ...}."""
    env = gymnasium.make("Pendulum-v1").unwrapped  # the time limit is the family's
    env.g, env.m = context["gravity"], context["mass"]
    return HiddenMotor(env, context["gain"])


def contexts(gravities, masses, gains):
    """Every combination."""
    names = ("gravity", "mass", "gain")
    return [dict(zip(names, values, strict=True)) for values in itertools.product(gravities, masses, gains)]


family = GymFamily(
    name="pendulum",
    make_env=make_env,
    train_contexts=contexts((6.0, 10.0), (0.8, 1.2), (-1.0, -0.7, 0.7, 1.0)),
    test_contexts=contexts((7.0, 9.0), (1.0,), (-0.85, 0.85)),
    horizon=200,
    probe_steps=3,
)
