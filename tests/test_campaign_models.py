"""A slice of the campaign against exported models, and that it finds what it looks for."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest

from pdvf.deploy.model_format import LAYOUTS
from pdvf.deploy.runtime import Adapter


@pytest.fixture(scope="module")
def models():
    spec = importlib.util.spec_from_file_location(
        "campaign_models", Path(__file__).parents[1] / "tools/campaign/models.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_attack_is_refused_or_acts(models):
    found = models.campaign(60.0, 0, attacks=30 * len(models.CLASSES))
    assert {name: row["examples"] for name, row in found.items() if row["failed"]} == {}
    assert all(found[name]["tried"] == 30 for name in models.CLASSES)
    assert all(found[name]["refused"] for name in models.CLASSES)
    for name in ("numbers", "bits of tensors", "header fields", "several"):
        assert found[f"{name}, re-signed"]["acted"]


def test_every_layout_is_attacked(models):
    assert models.LAYOUTS.keys() == LAYOUTS.keys()


def test_a_seed_makes_the_same_attacks(models):
    first, second = (models.mutated("value", "several", True, np.random.default_rng([3, 7])) for _ in range(2))
    assert first == second != models.mutated("value", "several", True, np.random.default_rng([3, 8]))


def _nan(action):
    return action * np.nan


def _outside(action):
    return action + 10


def _raise(action):
    raise KeyError("weight")


def _warn(action):
    warnings.warn("overflow", RuntimeWarning, stacklevel=2)
    return action


@pytest.mark.parametrize("spoil", [_nan, _outside, _raise, _warn])
def test_it_notices_what_is_wrong(spoil, models, monkeypatch, tmp_path):
    attacks, right = models.Attacks(tmp_path, 0), Adapter.act
    number = next(i for i in range(1000) if models.CLASSES[i % len(models.CLASSES)] == "bits of tensors, re-signed")
    assert attacks.run(number) == "acted"
    monkeypatch.setattr(Adapter, "act", lambda self, s: spoil(right(self, s)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((AssertionError, KeyError, RuntimeWarning)):
            attacks.run(number)
