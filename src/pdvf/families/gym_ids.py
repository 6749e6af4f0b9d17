"""Gymnasium ids. Only gymnasium is imported here, so that `import pdvf` stays fast; `make` loads the rest."""

from gymnasium.envs import registration

IDS = {
    "pdvf/Spaceship-v0": ("pdvf.engines.gym_envs:SpaceshipEnv", "pdvf.engines.gym_envs:SpaceshipVectorEnv"),
    "pdvf/Swimmer-v0": ("pdvf.engines.mujoco_gym_envs:SwimmerEnv", "pdvf.engines.mujoco_gym_envs:SwimmerVectorEnv"),
    "pdvf/AntWind-v0": ("pdvf.engines.mujoco_gym_envs:AntWindEnv", "pdvf.engines.mujoco_gym_envs:AntWindVectorEnv"),
    "pdvf/AntLegs-v0": ("pdvf.engines.mujoco_gym_envs:AntLegsEnv", "pdvf.engines.mujoco_gym_envs:AntLegsVectorEnv"),
}
"""Id: entry points of one environment and of many."""


def register() -> None:
    """Makes the ids known to Gymnasium; ids that it knows already are left alone."""
    for name, (entry_point, vector_entry_point) in IDS.items():
        if name not in registration.registry:
            registration.register(name, entry_point=entry_point, vector_entry_point=vector_entry_point)
