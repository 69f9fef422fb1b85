"""What a caller sent, decoded."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from python_multipart.multipart import parse_options_header

from torchlane.handlers.api import Request
from torchlane.handlers.content import InvalidInput
from torchlane.handlers.encoding import npy_of, png_of

NAMED = (
    b'Content-Disposition: form-data; name="file"; filename="a b.png"\r\nContent-Type: image/png'
)


def request(body: bytes, media_type: str = "") -> Request:
    return Request(body, {"media_type": media_type, "timeout_ms": 1000.0})


def form(*parts: tuple[bytes, bytes], end: bytes = b"--") -> Request:
    pieces = b"".join(b"--xx\r\n" + head + b"\r\n\r\n" + body + b"\r\n" for head, body in parts)
    return request(pieces + b"--xx" + end + b"\r\n", 'Multipart/form-data; boundary="xx"')


def test_json() -> None:
    assert request(b'{"a": [1, "\xc3\xa4"]}').json() == {"a": [1, "ä"]}


@pytest.mark.parametrize("body", [b"{", b"NaN", b"[1, Infinity]", b"\xff", b"[" * 100_000, b""])
def test_json_that_is_none(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="the body is not JSON"):
        request(body).json()


def test_json_of_a_type() -> None:
    @dataclass
    class Point:
        x: int
        y: int = 0

    assert request(b'{"x": 1}').json(Point) == Point(1, 0)
    with pytest.raises(InvalidInput, match=r"x: ") as failure:
        request(b'{"x": "one"}').json(Point)
    assert failure.value.details[0]["path"] == "x"
    with pytest.raises(InvalidInput, match="JSON"):
        request(b"{").json(Point)


def test_text() -> None:
    assert request("ä".encode()).text() == "ä"
    assert request(b"\xe4", "text/plain; charset=latin-1").text() == "ä"
    with pytest.raises(InvalidInput, match="not text in utf-8"):
        request(b"\xe4").text()
    with pytest.raises(InvalidInput, match="not text in klingon"):
        request(b"a", "text/plain; charset=klingon").text()
    with pytest.raises(InvalidInput, match="not text in"):
        request(b"a", "text/plain; charset=\0").text()


def test_picture_in_the_body_or_in_a_form() -> None:
    file = png_of(Image.new("RGB", (3, 2), "red"))
    assert request(file).image().getpixel((0, 0)) == (255, 0, 0)
    assert form((NAMED, file)).image().size == (3, 2)
    with pytest.raises(InvalidInput, match="the body is no picture: cannot identify"):
        request(b"no").image()


def test_damaged_picture_is_its_callers_mistake() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (99, 99), np.uint8))
    picture = request(png_of(noise)[:2000]).image()
    with pytest.raises(InvalidInput, match="the picture is damaged"):
        picture.crop((0, 0, 1, 1)).getpixel((0, 0))


def test_array() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(request(npy_of(array)).array(), array)
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    for body in (pickled.getvalue(), b"no", npy_of(array)[:-1]):
        with pytest.raises(InvalidInput, match=r"no \.npy file"):
            request(body).array()


def test_parts_of_a_form_keep_every_byte() -> None:
    body = bytes(range(256)) + b"\r\n--x\r\n\r\n"
    other = b'content-disposition: form-data; name="n"'
    parts = form((NAMED, body), (other, b"1"), (other, b"")).form
    (file,) = parts["file"]
    assert (file.body, file.filename, file.media_type) == (body, "a b.png", "image/png")
    assert [each.text() for each in parts["n"]] == ["1", ""]
    assert parts["n"][0].json() == 1


TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"\\'))


@given(name=TEXTS, filename=st.none() | TEXTS, media_type=st.sampled_from(["", "image/png"]))
@example(name="=?utf-8?q?=41?=", filename="%41; b=c", media_type="text/plain; charset=utf-8")
def test_parts_have_the_names_that_models_read(
    name: str, filename: str | None, media_type: str
) -> None:
    disposition = f'form-data; name="{name}"'
    disposition += "" if filename is None else f'; filename="{filename}"'
    head = f"Content-Disposition: {disposition}\r\nContent-Type: {media_type}"
    (part,) = form((head.encode(), b"1")).form[name]
    assert part.media_type == media_type
    assert part.filename == (filename or "")
    assert parse_options_header(disposition)[1][b"name"].decode() == name


@pytest.mark.parametrize(
    ("head", "filename"),
    [
        (b'content-disposition:form-data;name=n;filename="a\\"b\\\\c"', 'a"b\\c'),
        (b'A: b\r\nContent-Disposition: form-data; name="n"; filename="\xc3\xa4" ;', "\xe4"),
        (b"Content-Disposition: form-data; filename*=utf-8''x; name=n", ""),
        (b"Content-Disposition: form-data; name*=utf-8''m; NAME=n; filename=x", "x"),
    ],
)
def test_rarer_headers_of_a_part(head: bytes, filename: str) -> None:
    (part,) = form((head, b"1")).form["n"]
    assert part.filename == filename


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name="a"; name="b"',
        b'Content-Disposition: form-data; name="a"\r\nContent-Disposition: form-data; name="b"',
        b'Content-Disposition: form-data; name="a',
        b"Content-Disposition: form-data; name=a; b",
        b"Content-Disposition: form-data; name*=utf-8''m",
        b"Content-Disposition: form-data; name=" + b"(" * 3000 + b"; " * 400 + b"(",
        b"no header",
        b"Content-Disposition: form-data; name=a" + b"".join(b"\r\nX%d: 1" % n for n in range(8)),
        b"Content-Disposition: form-data; name=a\r\nX: " + b"1" * 4096,
    ],
)
def test_a_part_has_one_name_in_headers_within_limits(head: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"the parameter|malformed|no name|no headers"):
        _ = form((head, b"1")).form


@pytest.mark.parametrize("boundary", ["xx", '"xx"', '"xx"; charset=utf-8', "XX", '"x:x"', '"x x"'])
def test_boundaries(boundary: str) -> None:
    plain = boundary.split(";", maxsplit=1)[0].strip('"').encode()
    body = b"--" + plain + b"\r\n" + NAMED + b"\r\n\r\n1\r\n--" + plain + b"--\r\n"
    assert request(body, f"multipart/form-data;boundary={boundary}").text() == "1"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (request(b"a"), "no form"),
        (request(b"a", "multipart/form-data"), "no form"),
        (request(b"a", "multipart/form-data; boundary=x"), "does not end"),
        (form((NAMED, b"1"), end=b""), "does not end"),
        (form(*[(NAMED, b"")] * 1001), "more than 1000 parts"),
        (form((b"Content-Type: a/b", b"1")), "no name"),
        (request(b"--x\r\nnothing\r\n--x--\r\n", "multipart/form-data; boundary=x"), "no headers"),
    ],
)
def test_form_that_is_none(sent: Request, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        _ = sent.form


def test_form_of_several_parts_is_not_one_body() -> None:
    with pytest.raises(InvalidInput, match="the form has 2 parts"):
        form((NAMED, b"1"), (NAMED, b"2")).text()


def test_time_left() -> None:
    sent = request(b"")
    assert 0 < sent.left_s <= 1
    sent.deadline -= 2
    assert sent.left_s == 0
