"""Every method of the comparison behind one protocol (section 4.3): PD-VF is one of them.

A file of this folder that makes a `Method` has registered it.
"""

import importlib
import pkgutil

from pdvf.methods.base import (
    Agent,
    AtOnce,
    Feedback,
    Hidden,
    Inputs,
    Look,
    Method,
    Training,
    Transitions,
    agent_artefact,
    methods_in,
)
from pdvf.methods.play import play_agent, play_everywhere


def registered() -> dict[str, Method]:
    """The methods of this folder by name: the paper's in the order of its figures, then ours."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    found = {method.name: method for module in modules for method in methods_in(module)}
    return dict(sorted(found.items(), key=lambda item: item[1].look.place))


METHODS = registered()

__all__ = [
    "METHODS",
    "Agent",
    "AtOnce",
    "Feedback",
    "Hidden",
    "Inputs",
    "Look",
    "Method",
    "Training",
    "Transitions",
    "agent_artefact",
    "methods_in",
    "play_agent",
    "play_everywhere",
    "registered",
]
