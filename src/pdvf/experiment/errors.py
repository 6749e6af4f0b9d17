"""What can go wrong with a run, in words for the user."""

from __future__ import annotations

from pdvf.core.validation import OneLineError


class RunError(OneLineError):
    """A user's mistake or a broken run: one line with what was given, what was expected and what to do."""


def in_one_line(error: Exception) -> OneLineError | None:
    """What the user is told of an error, if it is theirs: JAX wraps what their environment raises."""
    if isinstance(error, OneLineError):
        return error
    from pdvf.families.env_pool import fault_of

    return fault_of(error)
