"""A HalfCheetah with a hidden payload: a MuJoCo model, a function that edits it, a reward. No engine to write.

pdvf check-family examples/half_cheetah.py:family
pdvf run examples/half_cheetah.py:family --preset smoke --out runs/cheetah
"""

import importlib.resources

import jax.numpy as jnp
import mujoco

from pdvf.families import MujocoModel

STEP = 0.05  # seconds of one step of the agent: five of the simulator's
DENSITY = 661  # makes the cheetah weigh Gymnasium's 14 kg


def model():
    """Gymnasium's model with a payload on its back, for now of next to no mass."""
    file = importlib.resources.files("gymnasium") / "envs" / "mujoco" / "assets" / "half_cheetah.xml"
    with importlib.resources.as_file(file) as path:
        spec = mujoco.MjSpec.from_file(str(path))
    spec.compiler.settotalmass = -1  # or the cheetah would lose what the payload weighs
    for geom in spec.geoms:
        geom.density = DENSITY
    torso = spec.body("torso")
    torso.add_geom(name="payload", type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.1, 0, 0], pos=[-0.3, 0, 0.15], mass=1e-3)
    payload = spec.geom("payload")
    payload.contype, payload.conaffinity = 0, 0  # it weighs and touches nothing
    return spec


def edit(spec, context):
    """Loads it: `mass` in kilograms, `place` from tail (-0.5) to head (0.5)."""
    payload = spec.geom("payload")
    payload.mass = context["mass"]
    payload.pos = [context["place"], 0, 0.15]


def reward(before, after, action):
    """Speed along x less the cost of the action."""
    return (after.qpos[0] - before.qpos[0]) / STEP - 0.1 * jnp.sum(action**2)


def observe(physics):
    """Everything but x."""
    return jnp.concatenate([physics.qpos[1:], physics.qvel])


family = MujocoModel(
    name="half-cheetah",
    model=model,
    edit_model=edit,
    reward_of=reward,
    observe_with=observe,
    train_contexts=[{"mass": m, "place": p} for m in (0.5, 3.0, 6.0) for p in (-0.5, 0.0, 0.5)],
    test_contexts=[{"mass": 4.5, "place": -0.25}, {"mass": 4.5, "place": 0.25}, {"mass": 8.0, "place": 0.0}],
    horizon=200,
    probe_steps=4,
)
