"""What varies: families of environments. Names are imported when they are used, so that workers need not import JAX."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdvf.core.arrays import Box
    from pdvf.families.base import (
        Family,
        GuardedFamily,
        HostFamily,
        MujocoFamily,
        NativeFamily,
        Outcome,
        Physics,
        Split,
    )
    from pdvf.families.builtin.ant_legs import AntLegs
    from pdvf.families.builtin.ant_wind import AntWind
    from pdvf.families.builtin.spaceship import Spaceship
    from pdvf.families.builtin.swimmer import Swimmer
    from pdvf.families.custom import GymFamily, MujocoModel
    from pdvf.families.registry import make_family

_HOMES = {
    "core.arrays": ("Box",),
    "families.base": (
        "Family",
        "GuardedFamily",
        "HostFamily",
        "MujocoFamily",
        "NativeFamily",
        "Outcome",
        "Physics",
        "Split",
    ),
    "families.builtin.ant_legs": ("AntLegs",),
    "families.builtin.ant_wind": ("AntWind",),
    "families.custom": ("GymFamily", "MujocoModel"),
    "families.registry": ("make_family",),
    "families.builtin.spaceship": ("Spaceship",),
    "families.builtin.swimmer": ("Swimmer",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"pdvf.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AntLegs",
    "AntWind",
    "Box",
    "Family",
    "GuardedFamily",
    "GymFamily",
    "HostFamily",
    "MujocoFamily",
    "MujocoModel",
    "NativeFamily",
    "Outcome",
    "Physics",
    "Spaceship",
    "Split",
    "Swimmer",
    "make_family",
]
