"""`pdvf list`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class List:
    """Families, presets and methods."""

    def main(self, said: str) -> int:
        """One line each."""
        from pdvf.config.presets import PRESETS
        from pdvf.families.registry import family_names, find_spec
        from pdvf.methods import METHODS

        for title, entries in (
            ("families", {name: find_spec(name).text for name in family_names()}),
            ("presets", PRESETS),
            ("methods", {name: method.text for name, method in METHODS.items()}),
        ):
            print(f"{title}:")
            for name, text in entries.items():
                print(f"  {name:<13} {text}")
        return 0
