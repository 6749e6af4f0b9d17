"""Gymnasium ids. Only gymnasium is imported here, so that `import pdvf` stays fast; `make` loads the rest."""

import gymnasium

IDS = {"pdvf/Spaceship-v0": ("pdvf.families.gym:SpaceshipEnv", "pdvf.families.gym:SpaceshipVectorEnv")}
"""Id: entry points of one environment and of many."""


def register() -> None:
    """Makes the ids known to Gymnasium; ids that it knows already are left alone."""
    for name, (entry_point, vector_entry_point) in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry_point, vector_entry_point=vector_entry_point)
