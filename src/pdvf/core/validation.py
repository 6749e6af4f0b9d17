"""How options are checked when they are made."""

from __future__ import annotations

from typing import Any


class OneLineError(Exception):
    """An error in words for the user: one line, whatever a stranger's file put into it."""

    def __str__(self) -> str:
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in super().__str__())


class ConfigError(OneLineError, ValueError):
    """A configuration that cannot be used; the message says what was given and what was expected."""


def require(condition: bool, name: str, given: Any, expected: str) -> None:
    """Raises unless the condition holds."""
    if not condition:
        raise ConfigError(f"{name} is {given!r}, expected {expected}")


def positive(options: Any, *names: str) -> None:
    """Raises unless these options are numbers above 0."""
    for name in names:
        value = getattr(options, name)
        require(value > 0, f"{type(options).__name__}.{name}", value, "a number above 0")


def divides(name: str, given: int, of: str, whole: int) -> None:
    """Raises unless a number divides another, which goes by the name `of`, without rest."""
    require(whole % given == 0, name, given, f"a divisor of {of} = {whole}")


def circle(options: Any) -> None:
    """Raises unless a family on a circle of dynamics has training and test environments and room for probing."""
    require(options.sampling in ("grid", "interval"), "environment.sampling", options.sampling, "'grid' or 'interval'")
    require(
        0 < options.train_environments < options.environments,
        "environment.train_environments",
        options.train_environments,
        f"between 1 and environments - 1 = {options.environments - 1}",
    )
    episode(options)


def episode(options: Any) -> None:
    """Raises unless an episode is a whole number of steps and longer than its probing."""
    for name in ("horizon", "probe_steps"):
        given = getattr(options, name)
        require(isinstance(given, int), f"environment.{name}", given, "a whole number")
    require(
        0 < options.probe_steps < options.horizon,
        "environment.probe_steps",
        options.probe_steps,
        f"between 1 and horizon - 1 = {options.horizon - 1}",
    )
