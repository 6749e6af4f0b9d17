"""Policy-Dynamics Value Functions: agents that adapt to hidden dynamics within one episode."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdvf.api import Run, load, open_run, train
    from pdvf.deploy.runtime import Adapter, AdapterError
    from pdvf.deploy.wrapper import AdaptiveWrapper

__version__ = "0.2.0"
__all__ = ["Adapter", "AdapterError", "AdaptiveWrapper", "Run", "load", "open_run", "train"]

# The command line (`pdvf`, or `python -m pdvf`) makes Ctrl-C safe before it imports anything that takes a while.
if os.path.basename(sys.argv[0]) not in ("pdvf", "-m"):
    with contextlib.suppress(ModuleNotFoundError):  # a robot that runs an exported model needs no Gymnasium
        from pdvf.families.gym_ids import register

        register()


def __getattr__(name: str) -> Any:
    """Imports what is asked for: a robot that asks for `Adapter` alone needs no JAX."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    own = {"Adapter": "pdvf.deploy.runtime", "AdapterError": "pdvf.deploy.runtime"}
    own |= {"AdaptiveWrapper": "pdvf.deploy.wrapper"}
    return getattr(importlib.import_module(own.get(name, "pdvf.api")), name)
