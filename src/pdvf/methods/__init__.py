"""Every method of the comparison behind one protocol (section 4.3): PD-VF is one of them.

A file of this folder that makes a `Method` has registered it.
"""

import importlib
import pkgutil

from pdvf.methods.base import Agent as Agent
from pdvf.methods.base import AtOnce as AtOnce
from pdvf.methods.base import Feedback as Feedback
from pdvf.methods.base import Hidden as Hidden
from pdvf.methods.base import Inputs as Inputs
from pdvf.methods.base import Look as Look
from pdvf.methods.base import Method as Method
from pdvf.methods.base import Training as Training
from pdvf.methods.base import Transitions as Transitions
from pdvf.methods.base import agent_artefact as agent_artefact
from pdvf.methods.base import methods_in as methods_in
from pdvf.methods.play import play_agent as play_agent
from pdvf.methods.play import play_everywhere as play_everywhere


def registered() -> dict[str, Method]:
    """The methods of this folder by name: the paper's in the order of its figures, then ours."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    found = {method.name: method for module in modules for method in methods_in(module)}
    return dict(sorted(found.items(), key=lambda item: item[1].look.place))


METHODS = registered()
