"""Forms to files."""

from __future__ import annotations

import pytest

from app.api.multipart import MAX_PART_HEADER_BYTES, MAX_PART_HEADERS, read_files
from app.codecs.sniffing import media_type_in
from app.errors import InvalidInput, PayloadTooLarge
from tests.forms import BOUNDARY, FORM, files, form, part

CURLS = (  # what `curl -F file=@x.png` of curl 7.88 sends
    f"--{BOUNDARY}\r\n"
    'Content-Disposition: form-data; name="file"; filename="x.png"\r\n'
    f"Content-Type: image/png\r\n\r\nDATA\r\n--{BOUNDARY}--\r\n"
).encode()


def read(body: bytes, content_type: str = FORM, most: int | None = None) -> list[tuple[str, bytes]]:
    return [
        (media_type_in(each.content_type), each.data)
        for each in read_files(content_type, body, most)
    ]


def rejected(body: bytes, content_type: str = FORM, most: int | None = None) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(body, content_type, most)
    return str(caught.value)


def test_a_header_that_a_part_repeats_is_refused() -> None:
    """Readers would differ in which one they use."""
    twice = form(part(b"DATA", Content_Type="text/plain", content_type="image/png"))
    assert "has the header 'content-type' more than once" in rejected(twice)


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (form(part(b"DATA")), ""),
        (form(part(b"DATA", CONTENT_TYPE="Image/PNG; x=y")), "image/png"),
        (form(part(b"DATA", filename="")), ""),
        (form(part(b"DATA", Content_Transfer_Encoding="Binary")), ""),
        (form(part(b"DATA", X_Other="\xe9; filename=x")), ""),
        (CURLS.replace(b'"x.png"', b'"a;b\\"c.png"'), "image/png"),
        (CURLS.replace(b'filename="x.png"', b"FileName* = utf-8''x.png"), "image/png"),
        (CURLS + b"an epilogue", "image/png"),
        (CURLS.removesuffix(b"\r\n"), "image/png"),
    ],
)
def test_forms_written_by_other_clients(body: bytes, media_type: str) -> None:
    assert read(body) == [(media_type, b"DATA")]


@pytest.mark.parametrize("boundary", ["b", "b" * 70, "a'()+_,-./:=?"])
def test_boundaries(boundary: str) -> None:
    body = form(part(b"DATA"), boundary=boundary)
    assert read(body, f'Multipart/Form-Data; charset=utf-8; Boundary="{boundary}"')[0][1] == b"DATA"


def test_files_may_contain_any_bytes() -> None:
    for data in (b"\r\n", b"--", b"\r\n--", b"\r\n-----", bytes(range(256)), b"\r" * 99, b"\n--b"):
        assert read(files(data, data), most=2) == [("application/octet-stream", data)] * 2


BAD: dict[str, tuple[str, bytes]] = {
    "no file": ("the form has no file; send one, as curl -F", f"--{BOUNDARY}--\r\n".encode()),
    "two files": ("the form has 2 parts; /predict accepts one file", files(b"a", b"b")),
    "a field": (
        "part 1 of the form is not a file: .* has no filename",
        form(part(b"a", filename=None)),
    ),
    "an extra field": ("the form has 2 parts", form(part(b"a"), part(b"5", filename=None))),
    "empty file": ("part 1 of the form is an empty file", files(b"")),
    "no headers": ("part 1 of the form is not a file", form(b"\r\nDATA")),
    "base64": (
        "Content-Transfer-Encoding 'base64'; send the file's bytes",
        form(part(b"REFUQQ==", Content_Transfer_Encoding="base64")),
    ),
    "empty body": ("does not begin with the boundary", b""),
    "another boundary": ("does not begin with the boundary", files(b"a").replace(b"89", b"98")),
    "a preamble": ("does not begin with the boundary", b"hello\r\n" + files(b"a")),
    "cut in the data": ("closing boundary is missing", files(b"a" * 99)[:-60]),
    "cut in a header": ("closing boundary is missing", files(b"a")[:60]),
    "cut in the closing boundary": ("closing boundary is missing", files(b"a")[:-6]),
    "a longer boundary": ("at byte 42 no line end", files(b"a").replace(b"f\r\n", b"fx\r\n", 1)),
    "a padded boundary": (
        "no line end follows the boundary",
        files(b"a").replace(b"f\r\n", b"f \r\n", 1),
    ),
    "a header without a colon": ("the form is damaged", form(b"Content-Type\r\n\r\nDATA")),
    "a header without an end": ("the form is damaged", form(b"A" * (MAX_PART_HEADER_BYTES + 1))),
    "a header that is too large": (
        "Maximum header size exceeded",
        form(part(b"a", X="y" * MAX_PART_HEADER_BYTES)),
    ),
    "too many headers": (
        "Maximum header count exceeded",
        form(part(b"a", **{f"X{n}": "" for n in range(MAX_PART_HEADERS)})),
    ),
}


@pytest.mark.parametrize(("message", "body"), BAD.values(), ids=BAD)
def test_malformed_form_error_names_the_problem(message: str, body: bytes) -> None:
    with pytest.raises(InvalidInput, match=message):
        read(body)


@pytest.mark.parametrize(
    ("content_type", "message"),
    [
        ("multipart/form-data", "has no boundary; let the client"),
        ("multipart/form-data; boundary=", "has no boundary"),
        (f"multipart/form-data; boundary={'b' * 71}", "has 71 bytes; the limit is 70"),
        (f"{FORM}; x={'y' * 1000}", "characters; for a form the limit is 1000"),
    ],
)
def test_invalid_boundary_is_refused(content_type: str, message: str) -> None:
    assert message in rejected(files(b"a"), content_type)


def test_files_are_counted_before_reading() -> None:
    assert len(read(files(*[b"a"] * 3), most=3)) == 3
    with pytest.raises(PayloadTooLarge, match="4 items in one request, the limit is 3"):
        read(files(*[b""] * 4), most=3)


@pytest.mark.parametrize("line", [b"\r\n--bx", b"\r\n--b " + b" " * 999])
def test_slow_input_never_reaches_the_parser(line: bytes) -> None:
    """Of 16 MiB, the most that a body may have by default."""
    told = rejected(form(part(line * (1 << 14)), boundary="b"), "multipart/form-data; boundary=b")
    assert "parts; /predict accepts one file" in told
