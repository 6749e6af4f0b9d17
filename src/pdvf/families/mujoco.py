"""MuJoCo models of a family: loaded, edited through MjSpec, compiled once for each context."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdvf.core.arrays import Array
from pdvf.core.validation import ConfigError
from pdvf.families.base import MjModel, MjSpec, MujocoFamily, Physics
from pdvf.families.env_pool import UserEnvError
from pdvf.families.env_process import said

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


def noisy_start(rest: Physics, noise: float, key: Array) -> Physics:
    """Rest, with noise drawn uniformly from [-noise, noise] on all positions and velocities."""
    nq = rest.qpos.shape[0]
    drawn = jax.random.uniform(key, (nq + rest.qvel.shape[0],), minval=-noise, maxval=noise)
    return Physics(rest.qpos + drawn[:nq], rest.qvel + drawn[nq:])


def never(before: Physics, after: Physics, action: Array) -> Array:
    """Nothing but the horizon ends an episode."""
    return jnp.zeros((), bool)


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
    spec = call_user(family, "model", family.base)
    if context is None:
        return call_user(family, "model", spec.compile)
    numbers = np.frombuffer(context, np.float32)
    named = dict(zip(family.context_names, map(float, map(str, numbers)), strict=False))  # dials may set more
    where = f"edit_model in context {named}"
    call_user(family, where, family.edit, spec, numbers)
    return call_user(family, where, spec.compile)


def call_user(family: MujocoFamily, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a family returns; what it raises becomes one line that says where."""
    try:
        return function(*arguments)
    except ConfigError:
        raise
    except Exception as error:
        raise UserEnvError(
            f"a function of {family.name} raised {type(error).__name__} in {where}{said(error)}: "
            "mend it and run the same command again"
        ) from None
