"""Families of the user's own by name: `package.module:object`, `file.py:object`, or an installed entry point."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pdvf.core.validation import ConfigError

GROUP = "pdvf.families"
"""Entry points of this group are known by their names."""
NEEDED = ("name", "context_names", "observation", "action", "horizon", "probe_steps", "train", "test")


class Origin(NamedTuple):
    """Where a family was loaded from, for another process to load it too."""

    target: str
    folder: str
    digest: str
    """Of the file that defines it, where there is one."""


_LOADED: dict[int, tuple[Any, Origin]] = {}  # by id of the family, which is kept
_GIVEN: dict[str, Any] = {}  # families that came as objects


def give(family: Any) -> str:
    """A target for a family that exists in this process alone, for instance in a notebook."""
    target = f"object:{getattr(family, 'name', '')}"
    _GIVEN[target] = _require_family(target, family)
    return target


def load(target: str) -> Any:
    """The family that a target names; a class or function without arguments is called."""
    return _GIVEN[target] if target in _GIVEN else load_once(target)


@cache
def load_once(target: str) -> Any:
    """The same for targets outside of this process; asked again, it is the same object."""
    made = find(target)
    _LOADED[id(made)] = made, Origin(target, str(Path.cwd()), _digest(target))
    return _require_family(target, made)


def _require_family(target: str, made: Any) -> Any:
    # `dir` first: `hasattr` would compute properties, and the spaces of a GymFamily need an environment.
    missing = [part for part in NEEDED if part not in dir(made) and not hasattr(made, part)]
    if missing:
        raise ConfigError(
            f"family {target!r} is a {type(made).__name__} without {', '.join(missing)}, expected a family: see "
            "docs/your_own_family.md"
        )
    return made


def origin(family: Any) -> Origin | None:
    """Where `load` has got this family from, if it did."""
    known = _LOADED.get(id(family))
    return known[1] if known else None


def find_again(origin: Origin) -> Any:
    """The same family in another process; its file must be the same."""
    _require_same(origin)
    made = find(origin.target)
    _require_same(origin)  # a module is known only now
    return made


def _require_same(origin: Origin) -> None:
    if _digest(origin.target) not in ("", origin.digest):
        raise ConfigError(f"the file of {origin.target} has changed since the command began")


def find(target: str) -> Any:
    """What a target names, whether or not it is a family."""
    module, _, name = target.partition(":")
    if not name:
        found = [point for point in importlib.metadata.entry_points(group=GROUP) if point.name == target]
        if not found:
            from pdvf.families.registry import family_names

            raise ConfigError(
                f"unknown family {target!r}, expected one of: {', '.join(family_names())}; an entry point "
                f"of the group {GROUP}; or your own as package.module:object"
            )
        made = guarded(f"family {target!r}", found[0].load)
    else:
        made = getattr(guarded(f"family {target!r}", lambda: load_module(module)), name, None)
        if made is None:
            raise ConfigError(f"family {target!r}: {module} has no {name!r}, expected an object that is a family")
    if (not hasattr(made, "horizon") and callable(made)) or isinstance(made, type):
        made = guarded(f"family {target!r}", made)
    return made


def _digest(target: str) -> str:
    module = target.partition(":")[0]
    file = Path(module if module.endswith(".py") else getattr(sys.modules.get(module), "__file__", None) or "")
    return sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def load_module(name: str) -> Any:
    """A module by its name, from the working folder too, or a file that ends in .py."""
    path = Path(name)
    if path.suffix != ".py":
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise FileNotFoundError(f"{path} is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def guarded(what: str, function: Any) -> Any:
    """What a user's function returns; whatever it raises is said in one line."""
    try:
        return function()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} cannot be loaded ({type(error).__name__}: {error}): mend it") from error
