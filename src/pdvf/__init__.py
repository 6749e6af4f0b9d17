"""Policy-Dynamics Value Functions: agents that adapt to hidden dynamics within one episode."""

from __future__ import annotations

import contextlib

__version__ = "0.2.0.dev0"

with contextlib.suppress(ModuleNotFoundError):  # a robot that runs an exported model needs no Gymnasium
    from pdvf.families.gym_ids import register

    register()
