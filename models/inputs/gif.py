"""Keeps only the first picture of a GIF file; Pillow reads what is before it in Python.

Format: GIF89a specification, CompuServe, 1990.
"""

from __future__ import annotations

from models.inputs.pictures import Essential, PictureError

SIGNATURES = (b"GIF87a", b"GIF89a")
SIGNATURE = b"GIF8"
HEAD = 13  # bytes: signature, size, flags, background, aspect ratio
DESCRIPTOR = 10  # bytes of the head of a picture
HAS_PALETTE, PALETTE_SIZE = 0x80, 0x07  # in flags
EXTENSION, PICTURE, END = 0x21, 0x2C, 0x3B  # kinds of blocks
CONTROL = 0xF9  # the extension with the transparent colour
MAX_BLOCKS = 10_000  # and one for each MIN_BLOCK_BYTES of the file; encoders write 255 bytes in one
MIN_BLOCK_BYTES = 100


def is_gif(data: bytes) -> bool:
    """Whether a file begins as GIF does."""
    return data.startswith(SIGNATURES)


def first_frame(data: bytes) -> Essential:
    """Reduce a GIF file to its only, or first, picture and its transparent colour.

    Raises:
        PictureError: if it has no whole picture, or more blocks than any encoder writes.
    """
    blocks_left = MAX_BLOCKS + len(data) // MIN_BLOCK_BYTES

    def end_of_blocks(at: int) -> int:
        """Return where the chain of blocks that begins at `at` ends."""
        nonlocal blocks_left
        while length := data[at]:
            at += 1 + length
            blocks_left -= 1
            if blocks_left < 0:
                raise PictureError("the GIF file has too many small blocks; save it again")
        return at + 1

    try:
        at = HEAD + _palette_bytes(data[HEAD - 3])
        parts = [data[:at]]
        while data[at] == EXTENSION:
            end = end_of_blocks(at + 2)
            if data[at + 1] == CONTROL:
                parts[1:] = [data[at:end]]  # only the last one counts
            at = end
            blocks_left -= 1
            if blocks_left < 0:
                raise PictureError("the GIF file has too many extensions; save it again")
        if data[at] != PICTURE:
            raise PictureError("the GIF file has no picture")
        pixels = at + DESCRIPTOR + _palette_bytes(data[at + DESCRIPTOR - 1])
        parts.append(data[at : end_of_blocks(pixels + 1)])
    except IndexError as error:
        raise PictureError("the picture is damaged: the GIF file ends early") from error
    return Essential(b"".join((*parts, bytes((END,)))), 1)


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & PALETTE_SIZE) + 1) if flags & HAS_PALETTE else 0
