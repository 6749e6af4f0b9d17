"""The smallest family of Gymnasium environments that still has everything, for runs that are to be killed."""

import gymnasium

from pdvf.families import GymFamily


def make_env(context):
    """A pendulum with this context: {"gravity": ...}."""
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.g = context["gravity"]
    return env


family = GymFamily(
    name="pendulum",
    make_env=make_env,
    train_contexts=[{"gravity": 6.0}, {"gravity": 8.0}, {"gravity": 12.0}],
    test_contexts=[{"gravity": 10.0}],
    horizon=8,
    probe_steps=2,
)
