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

_MODULES = ("core.arrays", "families.base", "families.registry", "families.custom")
_BUILTIN = {"AntLegs": "ant_legs", "AntWind": "ant_wind", "Spaceship": "spaceship", "Swimmer": "swimmer"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        modules = (f"families.builtin.{_BUILTIN[name]}",) if name in _BUILTIN else _MODULES
        for module in modules:
            found = importlib.import_module(f"pdvf.{module}")
            if hasattr(found, name):
                return getattr(found, name)
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
