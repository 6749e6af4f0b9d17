"""What can go wrong with a run, in words for the user."""

from __future__ import annotations

from pdvf.core.validation import OneLineError


class RunError(OneLineError):
    """A user's mistake or a broken run: one line with what was given, what was expected and what to do."""
