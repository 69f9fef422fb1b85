"""Errors that a user can fix; all others are bugs."""

from __future__ import annotations


class LoadTestError(Exception):
    """The load test cannot continue; the message gives the reason and the fix."""


class UsageError(LoadTestError):
    """Options that are invalid on this machine, alone or in combination."""
