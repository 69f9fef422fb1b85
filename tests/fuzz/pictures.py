"""PNG, JPEG, WebP and GIF files, as they are and in base64, for grey and for coloured pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import numpy as np
from PIL import Image

from app.codecs.base import Budget
from app.errors import TorchlaneError
from tests.fuzz.codecs import IMAGES
from tests.fuzz.oracle import check_items, check_refusal, outcome
from tests.fuzz.target import Finding, Target
from tests.unit.models.pictures import (
    claiming,
    encoded,
    exif_data,
    gif,
    grey,
    jpeg,
    noise,
    plus,
    png,
    webp,
)

MEDIA_TYPES = ("image/png", "image/jpeg")  # any file may come as either


def case(data: bytes) -> None:
    """The first byte says for which model and how it comes; the rest is the file, or its base64."""
    if not data:
        return
    how, file = data[0], data[1:]
    codec = IMAGES[how & 1]
    if how & 2:
        _base64(how, file)
        return
    got = outcome(codec, MEDIA_TYPES[how >> 2 & 1], file, many=bool(how & 8))
    text = base64.b64encode(file)
    body = b'{"input": "' + text + b'"}'
    again = outcome(codec, "application/json", body, many=False)
    if got != again:
        raise Finding(f"as a file: {got}\nin base64: {again}")


def _base64(how: int, text: bytes) -> None:
    codec = IMAGES[how & 1]
    try:
        item = codec.decode(text.decode("latin-1"), Budget())
    except TorchlaneError as error:
        check_refusal(error)
        return
    check_items(codec.manifest.inputs, [item], many=False)


def seeds() -> Iterator[bytes]:
    """Every mode that the two formats have, and what may be added to a picture."""
    for file in _files():
        for how in (0, 5, 8):
            yield bytes((how,)) + file
        text = base64.b64encode(file)
        yield b"\x02" + text
        yield b"\x03data:image/png;base64," + text


def _files() -> Iterator[bytes]:
    colours = Image.fromarray(noise(7, 9))
    yield grey(plus(8))
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        yield encoded(colours.convert(mode))
    yield encoded(Image.fromarray(np.linspace(0, 60_000, 60).astype(np.uint16).reshape(6, 10)))
    for colour, depth in ((0, 1), (0, 16), (2, 16), (3, 2), (4, 16), (6, 16)):
        yield png((9, 7), colour, depth)
        yield png((9, 7), colour, depth, interlaced=True)
    glass = colours.copy()
    glass.putalpha(128)
    yield encoded(glass)
    yield claiming(3000, 3000)
    yield claiming(1 << 20, 1)
    for mode in ("L", "RGB", "CMYK"):
        yield encoded(colours.convert(mode), "JPEG")
    yield jpeg(colours, progressive=True)
    yield jpeg(colours, restart_marker_blocks=1)
    yield jpeg(Image.fromarray(np.zeros((40, 30, 3), np.uint8)), quality=5)
    for picture in (colours, glass):
        for options in (
            {"lossless": True},
            {"quality": 5},
            {"exif": exif_data("<", (0x112, 3, 6))},
        ):
            yield webp(picture, **options)
    yield webp(colours, save_all=True, append_images=[glass])
    yield gif(colours)
    yield gif(glass.convert("RGBA"), save_all=True, append_images=[colours])
    yield gif(colours.convert("L"), transparency=3, comment=b"a comment")
    exif = Image.Exif()
    for turned in (3, 6, 8):
        exif[0x0112] = turned
        yield encoded(colours, "JPEG", exif.tobytes())
        yield encoded(colours, "PNG", exif.tobytes())
    for tag in range(0x9000, 0x9100):
        exif[tag] = 1
    yield encoded(colours, "JPEG", exif.tobytes())


WORDS = (
    *(b"\x89PNG\r\n\x1a\n", b"IHDR", b"IDAT", b"IEND", b"PLTE", b"tRNS", b"iCCP", b"zTXt", b"iTXt"),
    *(b"tEXt", b"eXIf", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"acTL", b"fcTL", b"fdAT", b"bKGD"),
    *(b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"\xff\xc0", b"\xff\xc1", b"\xff\xc2", b"\xff\xc4"),
    *(b"GIF87a", b"GIF89a", b"!\xf9\x04", b"!\xfe", b"!\xff\x0bNETSCAPE2.0", b","),
    *(b"RIFF", b"WEBP", b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF", b"\x9d\x01\x2a"),
    *(b"\xff\xdb", b"\xff\xdd", b"\xff\xe0", b"\xff\xe1", b"\xff\xe2", b"\xff\xee", b"\xff\xfe"),
    *(
        b"JFIF\0",
        b"Exif\0\0",
        b"II*\0",
        b"MM\0*",
        b"Adobe",
        b"ICC_PROFILE\0",
        b"MPF\0",
        b"Photoshop 3.0\0",
    ),
    *(
        b"http://ns.adobe.com/xap/1.0/\0",
        b"\0\0\0\x0d",
        b"\xff\xff\xff\xff",
        b"data:",
        b",",
        b"=",
        b"==",
    ),
)
TARGET = Target(case, seeds, WORDS, max_bytes=4096)
