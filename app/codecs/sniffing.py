"""Recognizes a file by its first bytes, where the client names no type or has guessed."""

from __future__ import annotations

from app.codecs.base import JPEG, NPY, PNG
from models import pictures

BEGINNINGS = (
    (pictures.PNG, PNG),
    (pictures.JPEG, JPEG),
    (b"\x93NUMPY", NPY),
)


def sniffed(data: bytes) -> str | None:
    """The media type of a PNG, JPEG or .npy file; None: it is none of them."""
    for beginning, media_type in BEGINNINGS:
        if data.startswith(beginning):
            return media_type
    return None
