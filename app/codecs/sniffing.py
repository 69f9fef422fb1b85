"""Kinds of files: by their media type, or by their first bytes if there is none or a guess."""

from __future__ import annotations

from app.codecs.base import FLAC, GIF, JPEG, NPY, NPZ, PNG, WAV, WEBP
from models.inputs import gif, pictures, sound_files, webp
from models.system.archive import BEGINNING

KINDS = (
    (pictures.PNG, PNG),
    (pictures.JPEG, JPEG),
    (gif.SIGNATURE, GIF),
    (b"\x93NUMPY", NPY),
    (BEGINNING, NPZ),
    (sound_files.FLAC, FLAC),
    (sound_files.RIFF, None),
)
BEGINNINGS = {each[0][:1]: each for each in KINDS}  # by the first byte, which no two share
IN_RIFF = {sound_files.WAVE: WAV, webp.WEBP: WEBP}  # RIFF files, by the four bytes after their size
KNOWN = "PNG, JPEG, WebP, GIF, WAV, FLAC, .npy or .npz"  # all of them, for messages

# Other names of media types that clients and their systems send.
SPELLINGS = {
    "image/jpg": JPEG,
    "image/pjpeg": JPEG,
    "image/x-png": PNG,
    "image/apng": PNG,  # an animated PNG file begins with a picture that every reader knows
    "audio/wave": WAV,
    "audio/vnd.wave": WAV,
    "audio/x-wav": WAV,
    "audio/x-pn-wav": WAV,
    "audio/x-flac": FLAC,
}


def media_type_in(content_type: str) -> str:
    """The media type of a Content-Type, in lower case, without parameters, in its usual name."""
    media_type = content_type.partition(";")[0].strip().lower()
    return SPELLINGS.get(media_type, media_type)


def sniffed(data: bytes) -> str | None:
    """The media type of a file of a `KNOWN` kind; None for any other file."""
    found = BEGINNINGS.get(data[:1])
    if found is None or not data.startswith(found[0]):
        return None
    return found[1] or IN_RIFF.get(data[8:12])
