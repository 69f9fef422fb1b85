"""What may go wrong for a reason that a user can do something about; anything else is a bug."""

from __future__ import annotations


class LoadTestError(Exception):
    """The load test cannot go on; the message says why and what to do."""


class UsageError(LoadTestError):
    """Options that make no sense on this machine, alone or together."""
