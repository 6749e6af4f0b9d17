"""Families of environments and the registry of their names."""

from collections.abc import Callable

from pdvf.config import Config
from pdvf.families.base import Box, Family, NativeFamily, Outcome, Split
from pdvf.families.spaceship import Spaceship

REGISTRY: dict[str, Callable[[Config], Family]] = {"spaceship": lambda config: Spaceship(config.environment)}


def make_family(config: Config) -> Family:
    """The family that a configuration names."""
    return REGISTRY[config.family](config)


__all__ = ["REGISTRY", "Box", "Family", "NativeFamily", "Outcome", "Spaceship", "Split", "make_family"]
