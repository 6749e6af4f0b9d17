"""Gymnasium ids of the built-in families. Registering imports none of them."""

from __future__ import annotations

from gymnasium.envs import registration

from pdvf.families.registry import family_names

MODULE = "pdvf.engines.gym_envs"


def gym_id(family: str) -> str:
    """The id of a built-in family: `pdvf/AntWind-v0` for `ant-wind`."""
    return f"pdvf/{''.join(word.capitalize() for word in family.split('-'))}-v0"


def register() -> None:
    """Makes the ids known to Gymnasium; ids that it knows already are left alone."""
    for family in family_names():
        if gym_id(family) not in registration.registry:
            registration.register(
                gym_id(family),
                entry_point=f"{MODULE}:make_env",
                vector_entry_point=f"{MODULE}:make_vector_env",
                kwargs={"family": family},
            )
