"""Files of several arrays (.npz): as bytes, and as archives of .npy files that are fuzzed.

A change of a byte nearly always breaks a checksum of an archive, and never reaches the arrays.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from app.api.payloads import read_items
from app.codecs.base import NPZ, Codec
from app.errors import TorchlaneError
from tests.fuzz import raw_bodies
from tests.fuzz.codecs import CODECS
from tests.fuzz.oracle import MAX_ITEMS, outcome
from tests.fuzz.target import Finding, Target

MANY, PACKED, DEFLATED = 1, 2, 4  # bits of the second byte
NPZ_CODECS = [codec for codec in CODECS if NPZ in codec.media_types]


def case(data: bytes) -> None:
    """First the codec, then the bits; the rest is the body, or with `PACKED` its arrays."""
    if len(data) < 2:
        return
    codec, bits, body = NPZ_CODECS[data[0] % len(NPZ_CODECS)], data[1], data[2:]
    many = bool(bits & MANY)
    if bits & PACKED:
        body = archive(codec, body, deflated=bool(bits & DEFLATED))
    got = outcome(codec, NPZ, body, many=many)
    try:
        items = read_items(codec, NPZ, body, many=many, max_items=MAX_ITEMS)
    except TorchlaneError:
        return
    arrays: dict[str, Any] = {  # what was read, written and read again, is the same
        spec.name: np.stack([item.arrays[spec.name] for item in items])
        for spec in codec.manifest.inputs
    }
    for write in (np.savez, np.savez_compressed):
        again = io.BytesIO()
        write(again, **(arrays if many else {name: each[0] for name, each in arrays.items()}))
        if outcome(codec, NPZ, again.getvalue(), many=many) != got:
            raise Finding(f"read differently again: {arrays}")


def archive(codec: Codec, body: bytes, *, deflated: bool) -> bytes:
    """An archive whose arrays are equal parts of a body."""
    made = io.BytesIO()
    specs = codec.manifest.inputs
    size = -(-len(body) // len(specs))
    how = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(made, "w", how) as file:
        for at, spec in enumerate(specs):
            file.writestr(f"{spec.name}.npy", body[at * size : (at + 1) * size])
    return made.getvalue()


def seeds() -> Iterator[bytes]:
    """One item and two, whole archives and their arrays."""
    for at, codec in enumerate(NPZ_CODECS):
        for many in (0, MANY):
            arrays: dict[str, Any] = {}
            for spec in codec.manifest.inputs:
                shape = [2 if size == -1 else size for size in spec.item_shape]
                arrays[spec.name] = np.ones([2, *shape] if many else shape, spec.dtype)
            for write in (np.savez, np.savez_compressed):
                whole = io.BytesIO()
                write(whole, **arrays)
                yield bytes((at, many)) + whole.getvalue()
            parts = [raw_bodies.npy(array) for array in arrays.values()]
            longest = max(map(len, parts))
            body = b"".join(part.ljust(longest, b"\0") for part in parts)
            yield bytes((at, many | PACKED)) + body
            yield bytes((at, many | PACKED | DEFLATED)) + body


WORDS = (
    *(b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08"),
    *(b"x.npy", b"a.npy", b"b.npy", b"picture.npy", b"../a.npy", b"\x08\x00", b"\xff\xff\xff\xff"),
    *raw_bodies.WORDS,
)
TARGET = Target(case, seeds, WORDS, max_bytes=2048)
