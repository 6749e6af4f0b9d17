"""Engines: what simulates a family."""

from __future__ import annotations

import importlib.util

import jax
import numpy as np

from pdvf.core.validation import ConfigError
from pdvf.engines.base import Engine
from pdvf.engines.host import HostEngine
from pdvf.engines.mujoco_c import MujocoCEngine
from pdvf.engines.native import NativeEngine
from pdvf.families.base import Family, HostFamily, MujocoFamily, NativeFamily
from pdvf.families.mujoco import need

NAMES = ("auto", "native", "host", "c", "mjx", "warp")


def make_engine(family: Family, name: str = "auto", seed: int = 0) -> Engine:
    """The engine of this name; `auto` takes what suits the family and the machine.

    `seed` is the seed of the family's splits: MJX keeps a table of the models of all their environments.
    """
    if name not in NAMES:
        raise ConfigError(f"engine is {name!r}, expected one of {', '.join(NAMES)}")
    fitting = _fitting(family)
    if name == "auto":
        name = "warp" if "warp" in fitting and _has_warp() else fitting[0]
    if name not in fitting:
        listed = ", ".join(fitting)
        raise ConfigError(f"engine is {name!r}, expected auto or one that simulates {family.name}: {listed}")
    if isinstance(family, NativeFamily):
        return NativeEngine(family)
    contexts = np.concatenate([family.train(seed).contexts, family.test(seed).contexts])
    known = tuple(map(tuple, contexts.tolist()))
    if isinstance(family, HostFamily):
        return HostEngine(family, known)
    assert isinstance(family, MujocoFamily)
    if name == "c":
        return MujocoCEngine(family)
    for package in ("mujoco", "warp") if name == "warp" else ("mujoco",):  # now: a run's folder is made next
        need(package, package, f"engine {name}")
    from pdvf.engines.mjx import MjxEngine

    return MjxEngine(family, known, "warp" if name == "warp" else "jax")


def _fitting(family: Family) -> tuple[str, ...]:
    """The engines that simulate a family, the usual one first."""
    for kind, names in ((NativeFamily, ("native",)), (MujocoFamily, ("c", "mjx", "warp")), (HostFamily, ("host",))):
        if isinstance(family, kind):
            return names
    raise ConfigError(
        f"no engine simulates {type(family).__name__}: it must satisfy NativeFamily, MujocoFamily or HostFamily of "
        "pdvf.families"
    )


def _has_warp() -> bool:
    """Whether Warp is installed and there is an NVIDIA GPU for it."""
    return importlib.util.find_spec("warp") is not None and jax.default_backend() == "gpu"


__all__ = ["NAMES", "Engine", "HostEngine", "MujocoCEngine", "NativeEngine", "make_engine"]
