"""`pdvf sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import tyro

from pdvf.cli.run import Run
from pdvf.core.validation import ConfigError


@dataclass(frozen=True)
class Sweep(Run):
    """Searches options in held-out training environments."""

    option: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """A name and values, such as `--option ppo.learning_rate 1e-4 3e-4`, or a name alone for the values of the paper's
    appendix C; every combination is tried."""
    method: str = "pd-vf"
    """The method that is trained and judged."""
    held_out: tuple[int, ...] = ()
    """Numbers of the training environments to judge in; a fifth from the middle of the list for none."""
    sampler: Literal["grid", "tpe"] = "grid"
    """Every combination, or combinations that Optuna proposes, where a bad trial is given up early."""
    range: tyro.conf.UseAppendAction[tuple[tuple[str, str, str], ...]] = ()
    """With tpe, an option and the ends of its range: `--range ppo.learning_rate 1e-5 1e-3`."""
    trials: int = 20
    """With tpe, how many combinations are tried."""
    dry_run: bool = False
    """Say what it would take, and stop."""

    def main(self, said: str) -> int:
        """Every trial that is missing, and the table."""
        from pdvf.experiment.provenance import use_recorded_cores
        from pdvf.experiment.remote import remote_at

        if remote_at(self.out) is not None:
            raise ConfigError(
                f"a sweep needs a folder of this machine or a shared one, {self.out} is an address: give a path"
            )
        use_recorded_cores(self.out / "trials" / "001")
        from pdvf.experiment.progress import make_progress
        from pdvf.experiment.sweep import make_sweep

        if not all(self.option):
            raise ConfigError("--option needs a name, for example --option ppo.learning_rate 1e-4 3e-4")
        options = {name: list(values) for name, *values in self.option}
        search: Any = make_sweep(self.config, options, self.method, self.held_out, bool(self.range))
        if self.sampler == "tpe":
            if self.execution.side_by_side:
                raise ConfigError("--sampler tpe makes one trial after the other, expected no --workers or --executor")
            from pdvf.experiment.tpe import make_search

            search = make_search(search, self.range, self.trials)
        elif self.range:
            raise ConfigError("--range is for --sampler tpe, expected --option with values: a grid has no ranges")
        say = partial(print, flush=True)
        say(f"budget: {search.budget()}")
        if not self.dry_run:
            table = search.run(self.out, said, say, make_progress(self.execution.quiet), self.execution.run)
            say(f"table: {table}")
        return 0
