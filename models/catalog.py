"""What `python -m export NAME` can build: a literal table, one line per model."""

from __future__ import annotations

from models.definitions import digits, pairwise, residual
from models.definitions.definition import Definition

CATALOG: dict[str, Definition] = {
    "digits": digits.DEFINITION,
    "pairwise": pairwise.DEFINITION,
    "residual": residual.DEFINITION,
}
