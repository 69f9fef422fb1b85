"""Forms of files, and bodies whose type nobody says, for every codec; one item and many."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.api.multipart import read_files
from app.api.payloads import CURLS_DEFAULT
from app.errors import TorchlaneError
from tests.forms import form, part
from tests.fuzz.codecs import CODECS
from tests.fuzz.oracle import MAX_ITEMS, check_refusal, outcome
from tests.fuzz.raw_bodies import npy, octets
from tests.fuzz.target import Finding, Target
from tests.unit.models.pictures import grey, plus

FORM = "multipart/form-data"
FREE = "a boundary that no case has"
UNTOLD = ("", CURLS_DEFAULT)


def case(data: bytes) -> None:
    """The codec; the type, and whether there are many; of a form a line that ends its type."""
    if len(data) < 2:
        return
    codec, how, body = CODECS[data[0] % len(CODECS)], data[1], data[2:]
    many = bool(how & 1)
    if how & 2:
        outcome(codec, UNTOLD[how >> 2 & 1], body, many=many)
        return
    ending, _, body = body.partition(b"\n")
    content_type = f"{FORM};{ending.decode('latin-1')}"
    got = outcome(codec, content_type, body, many=many)
    try:
        files = read_files(content_type, body, MAX_ITEMS if many else None)
    except TorchlaneError as error:
        check_refusal(error)
        return
    parts = [part(each.data, Content_Type=each.content_type) for each in files]
    again = form(*parts, boundary=FREE)
    if outcome(codec, f"{FORM}; boundary={FREE}", again, many=many) != got:
        raise Finding(f"written again it means something else: {files}")


def seeds() -> Iterator[bytes]:
    """Files of every kind, one and two, as forms and as they are."""
    for at, codec in enumerate(CODECS):
        spec = codec.manifest.inputs[0]
        item = np.ones([2 if size == -1 else size for size in spec.item_shape], spec.dtype)
        for data, media_type in (
            (octets(item), "application/octet-stream"),
            (npy(item), "application/x-npy"),
            (grey(plus(8)), "image/png"),
        ):
            one = part(data, Content_Type=media_type)
            yield bytes((at, 0)) + b"boundary=b\n" + form(one, boundary="b")
            yield bytes((at, 1)) + b'boundary="b c"\n' + form(one, part(data), boundary="b c")
            yield bytes((at, 2)) + data
        yield bytes((at, 7)) + b' {"inputs": []}'


WORDS = (
    *(
        b"boundary=b\n",
        b'boundary="',
        b"--b\r\n",
        b"\r\n--b\r\n",
        b"\r\n--b--\r\n",
        b"\r\n\r\n",
    ),
    *(b"\r\n--b", b"--", b" \r\n", b"\t", b"Content-Type: ", b"Content-Transfer-Encoding: "),
    *(b'Content-Disposition: form-data; name="f"; filename="x"\r\n', b"filename=", b"filename*="),
    *(b"base64", b"binary", b"image/jpeg", b"image/png", b"application/json", b"text/plain"),
    *(b"application/octet-stream", b"application/x-npy", b"multipart/mixed", b"\x93NUMPY\x01\x00"),
    *(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b'{"input": ', b"[", b"X: y\r\n" * 9, b"y" * 99),
)
TARGET = Target(case, seeds, WORDS, max_bytes=2048)
