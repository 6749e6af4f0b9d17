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
    from pdvf.families.custom import GymFamily, MujocoModel
    from pdvf.families.registry import make_family

_MODULES = ("core.arrays", "families.base", "families.registry", "families.custom")


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        found = importlib.import_module(f"pdvf.{module}")
        if hasattr(found, name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
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
    "Split",
    "make_family",
]
