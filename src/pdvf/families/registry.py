"""The registry of families: built-in ones by name, those of users by target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pdvf.families import loading
from pdvf.families.ant_legs import AntLegs
from pdvf.families.ant_wind import AntWind
from pdvf.families.base import Family
from pdvf.families.spaceship import Spaceship
from pdvf.families.swimmer import Swimmer

REGISTRY: dict[str, Callable[[Any], Family]] = {
    "spaceship": Spaceship,
    "swimmer": Swimmer,
    "ant-wind": AntWind,
    "ant-legs": AntLegs,
}
"""Name: family, made from its options."""


def make_family(name: str, options: Any) -> Family:
    """A built-in family with its options, or the user's own that a target names."""
    return REGISTRY[name](options) if name in REGISTRY else loading.load(name)
