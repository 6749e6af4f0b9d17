"""The paper's numbers: Figures 4 and 5, digitised, and the transfer tables of its appendix."""

from __future__ import annotations

import csv
import importlib.resources
from typing import NamedTuple

import numpy as np


class PaperReturn(NamedTuple):
    """A bar of the paper's Figures 4 and 5."""

    mean: float
    std: float


def test_returns(family: str) -> dict[str, dict[int, PaperReturn]]:
    """Return by method and number of the test environment; empty for a family the paper does not have."""
    found: dict[str, dict[int, PaperReturn]] = {}
    for row in _rows("test_returns.csv") or []:
        if row["domain"] == family.replace("_", "-"):
            bar = PaperReturn(float(row["mean"]), float(row["std"]))
            found.setdefault(row["method"], {})[int(row["environment"])] = bar
    return found


def transfer(family: str) -> np.ndarray | None:
    """Mean return [P, E] of the policy trained in environment P + 1 in environment E + 1, where there is a table."""
    rows = _rows(f"transfer_{family.replace('-', '_')}.csv")
    if rows is None:
        return None
    return np.array([[float(value) for name, value in row.items() if name != "policy"] for row in rows])


def _rows(name: str) -> list[dict[str, str]] | None:
    file = importlib.resources.files("pdvf.reports").joinpath("paper", name)
    if not file.is_file():
        return None
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
