"""Options of a run from a file: what a run's config.json says can be given back, whole or in part."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from pdvf.config import Config, ConfigError, flatten, with_options
from pdvf.experiment.files import oddity, read_file

LARGEST = 2**16
"""Bytes of a file; a config.json with every option has a tenth of them."""


def with_file(base: Config, path: Path) -> Config:
    """A configuration with the options of a JSON or YAML file in place of those of `base`, which has its family."""
    expected = "expected options by name, in a file that ends in .json or .yaml"
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise ConfigError(f"--config is {path}, {expected}")
    if path.is_file() and path.stat().st_size > LARGEST:
        raise ConfigError(f"{path} has {path.stat().st_size} bytes, more than {LARGEST}, {expected}")
    text = read_file(path)
    try:
        is_json = path.suffix == ".json"
        data = json.loads(text, object_pairs_hook=_once) if is_json else yaml.load(text, _Loader)
    except Exception as error:  # PyYAML raises many kinds
        raise ConfigError(f"{path} cannot be read ({' '.join(str(error).split())}), {expected}") from error
    if odd := oddity(data):
        raise ConfigError(f"{path} holds {odd}, {expected}")
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds {type(data).__name__}, {expected}")
    if (family := data.pop("family", base.family)) != base.family:
        raise ConfigError(f"{path} is for the family {family!r}, expected {base.family!r} as on the command line")
    try:
        return with_options(base, _once((name, _number(value)) for name, value in flatten(data)))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


class _Loader(yaml.SafeLoader):
    """YAML without references, which let a small file stand for a huge one, and with each name once."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Raises at a reference."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError(f"the reference *{self.peek_event().anchor}, expected the values themselves")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """As `_once`."""
        return _once(self.construct_pairs(node, deep))


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A dictionary; raises where a name is no text or there twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise ValueError(f"the name {name!r}, expected text")
        if name in found:
            raise ValueError(f"{name} is there twice, expected once")
        found[name] = value
    return found


def _number(value: Any) -> Any:
    """YAML takes 1e-4 for text."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return value
    return number if math.isfinite(number) else value
