"""Options of a run from a file: what a run's config.json says can be given back, whole or in part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from pdvf.config import Config, ConfigError, with_options
from pdvf.experiment.files import flatten, read_file


def with_file(base: Config, path: Path) -> Config:
    """A configuration with the options of a JSON or YAML file in place of those of `base`, which has its family."""
    expected = "expected options by name, in a file that ends in .json or .yaml"
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise ConfigError(f"--config is {path}, {expected}")
    try:
        data = (json.loads if path.suffix == ".json" else yaml.safe_load)(read_file(path))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read ({' '.join(str(error).split())}), {expected}") from error
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise ConfigError(f"{path} holds {type(data).__name__}, {expected}")
    given = {name: _number(value) for name, value in flatten(data).items()}
    if (family := given.pop("family", base.family)) != base.family:
        raise ConfigError(f"{path} is for the family {family!r}, expected {base.family!r} as on the command line")
    try:
        return with_options(base, given)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _number(value: Any) -> Any:
    """YAML takes 1e-4 for text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
