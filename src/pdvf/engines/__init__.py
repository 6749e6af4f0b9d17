"""Engines: what simulates a family."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np

from pdvf.core.validation import ConfigError
from pdvf.engines.base import Engine
from pdvf.engines.host import HostEngine
from pdvf.engines.mjx import MjxEngine
from pdvf.engines.mujoco_c import MujocoCEngine
from pdvf.engines.native import NativeEngine
from pdvf.families.base import Family, HostFamily, MujocoFamily, NativeFamily

Make = Callable[[Any, int], Engine]
"""From a family and the seed of its splits."""


def _all_contexts(family: Family, seed: int) -> tuple[tuple[float, ...], ...]:
    contexts = np.concatenate([family.train(seed).contexts, family.test(seed).contexts])
    return tuple(map(tuple, contexts.tolist()))


def _mjx(implementation: Literal["jax", "warp"]) -> Make:
    return lambda family, seed: MjxEngine(family, _all_contexts(family, seed), implementation)


ENGINES: dict[str, tuple[Any, Make]] = {
    "native": (NativeFamily, lambda family, seed: NativeEngine(family)),
    "c": (MujocoFamily, lambda family, seed: MujocoCEngine(family)),
    "mjx": (MujocoFamily, _mjx("jax")),
    "warp": (MujocoFamily, _mjx("warp")),
    "host": (HostFamily, lambda family, seed: HostEngine(family, _all_contexts(family, seed))),
}
"""The families that each simulates, and what makes it."""


def make_engine(family: Family, name: str = "auto", seed: int = 0) -> Engine:
    """The engine of this name; `auto` takes what suits the family and the machine.

    `seed` is the seed of the family's splits: MJX keeps a table of the models of all their environments.
    """
    if name not in ("auto", *ENGINES):
        raise ConfigError(f"engine is {name!r}, expected one of auto, {', '.join(ENGINES)}")
    fitting = [known for known, (kind, _) in ENGINES.items() if isinstance(family, kind)]
    if not fitting:
        raise ConfigError(
            f"no engine simulates {type(family).__name__}: it must satisfy NativeFamily, MujocoFamily or HostFamily of "
            "pdvf.families"
        )
    if name == "auto":
        name = "warp" if "warp" in fitting and _has_warp() else fitting[0]
    if name not in fitting:
        listed = ", ".join(fitting)
        raise ConfigError(f"engine is {name!r}, expected auto or one that simulates {family.name}: {listed}")
    return ENGINES[name][1](family, seed)


def _has_warp() -> bool:
    """Whether Warp is installed and there is an NVIDIA GPU for it."""
    return importlib.util.find_spec("warp") is not None and jax.default_backend() == "gpu"


__all__ = ["ENGINES", "Engine", "HostEngine", "MujocoCEngine", "NativeEngine", "make_engine"]
