"""Presets: what `smoke`, `quick`, `paper` and `best` set for a family, and a budget; the family says what that is."""

from __future__ import annotations

from pdvf.config import BUDGETS, Config, ConfigError, environment_options, with_options
from pdvf.families.presets import custom
from pdvf.families.registry import family_names, find_spec

PRESETS: dict[str, str] = {
    "smoke": "a few minutes on two cores, to see that everything works; the numbers mean nothing",
    "quick": "minutes on two cores; strong enough to show adaptation on small problems",
    "paper": "the paper's sizes; minutes on a GPU, hours on a CPU",
    "best": "as paper, with what a family needs for strong policies",
}
STEPS = {"paper": ("paper",), "best": ("paper", "best"), "quick": ("quick",), "smoke": ("quick", "smoke")}
"""What is set one after the other, on top of `common`."""
ALWAYS = {"value.members": 16, "value.anchor": 0.5}
"""Where all families differ from the paper: docs/decisions/0005-value.md."""


def preset(family: str, name: str, budget: str = "paper") -> Config:
    """The configuration of a preset for a family, with sizes that suit a budget."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}, expected one of: {', '.join(PRESETS)}")
    if budget not in BUDGETS:
        raise ConfigError(f"unknown budget {budget!r}, expected one of: {', '.join(BUDGETS)}")
    environment = environment_options(family)
    known = family in family_names()
    presets = find_spec(family).presets if known else custom(environment.horizon, environment.probe_steps)
    config = with_options(Config(family, environment), ALWAYS)
    for step in ("common", *STEPS[name], *(("equal",) if budget == "equal" else ())):
        config = with_options(config, presets.get(step, {}))
    return with_options(config, {"budget": budget})
