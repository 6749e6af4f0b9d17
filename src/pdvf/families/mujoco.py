"""MuJoCo models of a family: loaded, edited through MjSpec, compiled once for each context."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import threading
from functools import lru_cache
from typing import Any

import numpy as np

from pdvf.core.validation import ConfigError
from pdvf.families.base import MjModel, MjSpec, MujocoFamily

MODELS = 1024  # compiled models that are kept
_COMPILING = threading.Lock()


def need(package: str, extra: str, what: str) -> None:
    """Raises one line that names the extra to install when a package is not there."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{what} needs {package}, which is not installed: pip install 'pdvf[{extra}]'")


def library(part: str = "") -> Any:
    """The package `mujoco`, or a part of it; loaded when it is needed, since not everyone has it."""
    need("mujoco", "mujoco", "a MuJoCo family")
    return importlib.import_module(f"mujoco.{part}" if part else "mujoco")


def asset(name: str) -> MjSpec:
    """A fresh specification of one of the models that come with Gymnasium."""
    file = importlib.resources.files("gymnasium").joinpath("envs", "mujoco", "assets", name)
    with importlib.resources.as_file(file) as path:
        return library().MjSpec.from_file(str(path))


def base_model(family: MujocoFamily) -> MjModel:
    """The model without a context: its sizes and its rest pose are those of every variant."""
    return _compiled(family, None)


def model(family: MujocoFamily, context: np.ndarray) -> MjModel:
    """The model of a context [c], compiled when it is first asked for."""
    return _compiled(family, np.ascontiguousarray(context, np.float32).tobytes())


def _compiled(family: MujocoFamily, context: bytes | None) -> MjModel:
    with _COMPILING:  # callers come from several threads, and a model is compiled once
        return _compile(family, context)


@lru_cache(maxsize=MODELS)
def _compile(family: MujocoFamily, context: bytes | None) -> MjModel:
    need("mujoco", "mujoco", f"the family {family.name}")
    spec = family.base()
    if context is not None:
        family.edit(spec, np.frombuffer(context, np.float32))
    return spec.compile()
