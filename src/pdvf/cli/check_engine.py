"""`pdvf check-engine`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from pdvf.core.validation import ConfigError

POLICIES, STEPS, EPISODES = 8, 50, 2
"""Untrained policies that play, steps that are compared one by one, episodes of each policy in each environment."""


@dataclass(frozen=True)
class CheckEngine:
    """A MuJoCo engine against MuJoCo in C."""

    family: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FAMILY")]
    """A MuJoCo family that `pdvf list` names."""
    engine: Literal["mjx", "warp"] = "warp"
    """The engine to check."""
    run: Path | None = None
    """A run whose finished policies play; untrained ones if it is left out."""
    seed: int = 0
    """Seed of everything that is random."""
    out: Path | None = None
    """Write everything to this JSON file, too."""

    def main(self, said: str) -> int:
        """Prints the table; 1 where returns do not agree."""
        del said
        from pdvf.families.base import MujocoFamily
        from pdvf.families.registry import family_names, make_family

        families = [name for name in family_names() if isinstance(make_family(name), MujocoFamily)]
        if self.family not in families:
            expected = ", ".join(families)
            raise ConfigError(f"`pdvf check-engine` was given {self.family}, expected a MuJoCo family: {expected}")
        import jax

        from pdvf.config import from_dict
        from pdvf.config.presets import preset
        from pdvf.experiment import engine_parity
        from pdvf.experiment.files import to_json, write_file
        from pdvf.experiment.store import RunStore
        from pdvf.paper import pipeline

        if self.run is None:
            problem = pipeline.Problem(preset(self.family, "paper"))
            actors = engine_parity.random_policies(problem.engine.family, POLICIES, jax.random.key(self.seed))
        else:
            store = RunStore.open(self.run, family=self.family)
            problem = pipeline.Problem(from_dict(store.config))
            policies = store.load("policies", pipeline.artefact_shapes(problem)["policies"])
            actors = pipeline.finished_policies(policies)
        family = make_family(problem.config.family, problem.config.environment)
        result = engine_parity.check_engine(family, self.engine, actors, self.seed, STEPS, EPISODES)  # type: ignore[arg-type]
        print(engine_parity.table(result))
        if self.out is not None:
            write_file(self.out, to_json(result))
        return 0 if result["returns"]["agree"] else 1
