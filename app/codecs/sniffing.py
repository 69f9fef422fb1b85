"""Kinds of files: by their media type, or by their first bytes if there is none or a guess."""

from __future__ import annotations

from app.codecs.base import JPEG, NPY, NPZ, PNG
from models import pictures
from models.archive import BEGINNING

BEGINNINGS = (
    (pictures.PNG, PNG),
    (pictures.JPEG, JPEG),
    (b"\x93NUMPY", NPY),
    (BEGINNING, NPZ),
)


# Other names of media types that clients and their systems send.
SPELLINGS = {
    "image/jpg": JPEG,
    "image/pjpeg": JPEG,
    "image/x-png": PNG,
    "image/apng": PNG,  # an animated PNG file begins with a picture that every reader knows
}


def media_type_in(content_type: str) -> str:
    """The media type of a Content-Type, in lower case, without parameters, in its usual name."""
    media_type = content_type.partition(";")[0].strip().lower()
    return SPELLINGS.get(media_type, media_type)


def sniffed(data: bytes) -> str | None:
    """The media type of a PNG, JPEG, .npy or .npz file; None for any other file."""
    for beginning, media_type in BEGINNINGS:
        if data.startswith(beginning):
            return media_type
    return None
