"""Policy-Dynamics Value Functions: agents that adapt to hidden dynamics within one episode."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any

__version__ = "0.2.0.dev0"


def register() -> None:
    """Makes the ids `pdvf/...-v0` known to Gymnasium."""
    from pdvf.ids import register

    register()


class _OnceImported(importlib.abc.MetaPathFinder):
    """Registers the ids as soon as Gymnasium is imported: who wants `pdvf.runtime` alone need not wait for it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Gymnasium's own specification, with the registration behind its loading."""
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                register()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "gymnasium" in sys.modules:
    register()
else:
    sys.meta_path.insert(0, _OnceImported())
