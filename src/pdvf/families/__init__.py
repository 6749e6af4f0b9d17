"""Families of environments and the registry of their names."""

from collections.abc import Callable
from typing import Any

from pdvf import targets
from pdvf.config import Config
from pdvf.families.ant_legs import AntLegs
from pdvf.families.ant_wind import AntWind
from pdvf.families.base import (
    Box,
    Family,
    GuardedFamily,
    HostFamily,
    MujocoFamily,
    NativeFamily,
    Outcome,
    Physics,
    Split,
)
from pdvf.families.own import GymFamily, MujocoModel
from pdvf.families.spaceship import Spaceship
from pdvf.families.swimmer import Swimmer

REGISTRY: dict[str, Callable[[Any], Family]] = {
    "spaceship": Spaceship,
    "swimmer": Swimmer,
    "ant-wind": AntWind,
    "ant-legs": AntLegs,
}
"""Name: family, made from its options."""


def make_family(config: Config) -> Family:
    """The family that a configuration names."""
    if config.family not in REGISTRY:
        return targets.load(config.family)
    return REGISTRY[config.family](config.environment)


__all__ = [
    "REGISTRY",
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
