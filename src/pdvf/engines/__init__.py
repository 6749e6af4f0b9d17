"""Engines: what simulates a family."""

from __future__ import annotations

import importlib.util

import jax
import numpy as np

from pdvf.checked import ConfigError
from pdvf.engines.base import Engine
from pdvf.engines.mujoco_c import MujocoCEngine
from pdvf.engines.native import NativeEngine
from pdvf.families.base import Family, MujocoFamily, NativeFamily

NAMES = ("auto", "native", "c", "mjx", "warp")


def make_engine(family: Family, name: str = "auto", seed: int = 0) -> Engine:
    """The engine of this name; `auto` takes what suits the family and the machine.

    `seed` is the seed of the family's splits: MJX keeps a table of the models of all their environments.
    """
    if name not in NAMES:
        raise ConfigError(f"engine is {name!r}, expected one of {', '.join(NAMES)}")
    native, mujoco = isinstance(family, NativeFamily), isinstance(family, MujocoFamily)
    if not native and not mujoco:
        raise TypeError(
            f"no engine simulates {type(family).__name__}: it must satisfy pdvf.families.NativeFamily or MujocoFamily"
        )
    if name == "auto":
        name = "native" if native else "warp" if _has_warp() else "c"
    if native != (name == "native"):
        fitting = "native" if native else "c, mjx, warp"
        raise ConfigError(f"engine is {name!r}, expected auto or one that simulates {family.name}: {fitting}")
    if isinstance(family, NativeFamily):
        return NativeEngine(family)
    assert isinstance(family, MujocoFamily)
    if name == "c":
        return MujocoCEngine(family)
    from pdvf.engines.mjx import MjxEngine

    contexts = np.concatenate([family.train(seed).contexts, family.test(seed).contexts])
    return MjxEngine(family, tuple(map(tuple, contexts.tolist())), "warp" if name == "warp" else "jax")


def _has_warp() -> bool:
    """Whether Warp is installed and there is an NVIDIA GPU for it."""
    return importlib.util.find_spec("warp") is not None and jax.default_backend() == "gpu"


__all__ = ["NAMES", "Engine", "MujocoCEngine", "NativeEngine", "make_engine"]
