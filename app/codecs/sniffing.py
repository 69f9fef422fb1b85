"""Recognition of files by their first bytes, if the client sent no type or a guessed one."""

from __future__ import annotations

from app.codecs.base import JPEG, NPY, PNG
from models import pictures

BEGINNINGS = (
    (pictures.PNG, PNG),
    (pictures.JPEG, JPEG),
    (b"\x93NUMPY", NPY),
)


def sniffed(data: bytes) -> str | None:
    """The media type of a PNG, JPEG or .npy file; None for any other file."""
    for beginning, media_type in BEGINNINGS:
        if data.startswith(beginning):
            return media_type
    return None
