"""The registry of families: a built-in one is a file in `builtin`, one of the user's own is named by a target.

Listing names imports nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pdvf.families import builtin, loading

if TYPE_CHECKING:
    from pdvf.families.base import Family

Presets = Mapping[str, Mapping[str, Any]]
"""Options by dotted name that `common`, `paper`, `best`, `quick`, `smoke`, `equal` set; see `pdvf.config.presets`."""


class FamilySpec(NamedTuple):
    """What a module of `builtin` says of its family, as `FAMILY`."""

    make: Callable[[Any], Family]
    """From its options to the family."""
    options: Callable[[], Any]
    """Its options with the usual values."""
    text: str
    """One line for people."""
    presets: Presets


def family_names() -> tuple[str, ...]:
    """Built-in families."""
    return tuple(module.name.replace("_", "-") for module in pkgutil.iter_modules(builtin.__path__))


def find_spec(name: str) -> FamilySpec:
    """The entry of a built-in family."""
    return importlib.import_module(f"{builtin.__name__}.{name.replace('-', '_')}").FAMILY


def make_family(name: str, options: Any = None) -> Family:
    """A built-in family with its options, the usual ones for none; or the user's own that a target names."""
    if name not in family_names():
        return loading.load(name)
    spec = find_spec(name)
    return spec.make(options or spec.options())
