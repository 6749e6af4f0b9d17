"""A progress front end in one file: a function of an event that counts what has happened."""

from __future__ import annotations

from collections import Counter

from pdvf.experiment.events import Event


class Tally(Counter[str]):
    """How many tasks have begun, gone on, ended."""

    def __call__(self, event: Event) -> None:
        self[event.kind] += 1
