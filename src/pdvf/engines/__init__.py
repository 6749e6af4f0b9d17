"""Engines: what simulates a family."""

from pdvf.engines.base import Engine
from pdvf.engines.native import NativeEngine
from pdvf.families.base import Family, NativeFamily


def make_engine(family: Family) -> Engine:
    """The engine that suits the family and the machine."""
    if isinstance(family, NativeFamily):
        return NativeEngine(family)
    raise TypeError(f"no engine simulates {type(family).__name__}: it must satisfy pdvf.families.NativeFamily")


__all__ = ["Engine", "NativeEngine", "make_engine"]
