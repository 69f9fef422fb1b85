"""The base of every part of the manifest."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Base of every part: immutable, strict about names, without NaN and infinity as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def is_empty(value: object) -> bool:
    """Whether a field is left out of a manifest, which older servers can then read."""
    return not value
