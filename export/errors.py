"""What can go wrong in an export, by who has to act.

ExportError
|-- UsageError       the command line is wrong: exit 2
`-- ParityError      the made file does not answer as eager PyTorch does: exit 1
"""

from __future__ import annotations


class ExportError(Exception):
    """The export failed and left no artifact; the message says why."""


class UsageError(ExportError):
    """The command asks for something that cannot be; the message says what would be right."""


class ParityError(ExportError):
    """A variant's answers are not those of the eager model."""
