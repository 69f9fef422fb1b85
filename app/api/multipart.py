"""The parts of a multipart/form-data body (RFC 7578), as `curl -F` and browsers send them.

The body is already in memory, within the limits for all bodies. This module bounds the work:
python-multipart inspects every byte after a false or padded boundary, in Python.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from app.codecs.base import check_count
from app.errors import InvalidInput

FORM = "multipart/form-data"
MAX_CONTENT_TYPE_CHARACTERS = 1000
MAX_BOUNDARY_BYTES = 70  # RFC 2046, section 5.1.1
MAX_PART_HEADERS = 8
MAX_PART_HEADER_BYTES = 4096
HAS_FILENAME = re.compile(rb";[ \t]*filename\*?[ \t]*=", re.IGNORECASE)
# Content-Transfer-Encodings that change nothing.
IDENTITY_ENCODINGS = (b"", b"7bit", b"8bit", b"binary")
FILE = "file"  # the usual name of the part with a file
MAX_SHOWN = 40  # characters of a name, in an error
EXAMPLE = "curl -F file=@photo.jpg"


@dataclass(slots=True)
class File:
    """A part of a form.

    Attributes:
        headers: headers, with names in lower case.
        repeated: the name of a header that the part has more than once, if any.
        data: the part's bytes.
    """

    headers: dict[bytes, bytes] = field(default_factory=dict)
    repeated: bytes = b""
    data: bytes = b""

    @property
    def content_type(self) -> str:
        """The part's Content-Type, or ""."""
        return self.headers.get(b"content-type", b"").strip().decode("latin-1")


def read_files(
    content_type: str,
    body: bytes,
    most: int | None,
    *,
    named: bool = True,
    instead: str | None = None,
) -> list[File]:
    """The files of a form, in order.

    Args:
        content_type: the body's Content-Type, with its boundary.
        body: the whole body.
        most: maximum number of files; None for exactly one.
        named: whether each file must have a file name.
        instead: the error for several parts where one is allowed; None: the usual one.

    Raises:
        InvalidInput: if the body is not a form, is damaged or cut off, or has parts that are not
            files.
        PayloadTooLarge: if there are too many files.
    """
    boundary = _boundary(content_type)
    parts = _count(body, boundary)
    if most is None and parts > 1:
        raise InvalidInput(
            instead
            or f"the form has {parts} parts; /predict accepts one file and nothing else, "
            "/batch-predict accepts several files"
        )
    if most is not None:
        check_count(parts, most)
    return _read(body, boundary, named=named)


def read_parts(
    content_type: str, body: bytes, names: Sequence[str], optional: Collection[str] = ()
) -> dict[str, File]:
    """The parts of a form that is one item, by their names.

    Args:
        content_type: the body's Content-Type, with its boundary.
        body: the whole body.
        names: of the parts; the first one may also be called `file`, unless another one is.

        optional: the names of those that may be missing.

    Raises:
        InvalidInput: if the body is not a form, is damaged or cut off, or has other parts.
    """
    boundary = _boundary(content_type)
    count = _count(body, boundary)
    needed = [name for name in names if name not in optional]
    wanted = f"the form must have the parts {', '.join(names)}, each once"
    if len(needed) < len(names):
        wanted += f" ({', '.join(sorted(optional))} may be missing)"
    if not len(needed) <= count <= len(names):
        raise InvalidInput(f"{wanted}; it has {count}")
    found: dict[str, File] = {}
    for file in _read(body, boundary, named=False):
        disposition = file.headers.get(b"content-disposition", b"")
        name = parse_options_header(disposition)[1].get(b"name", b"").decode("latin-1")
        name = names[0] if name == FILE and FILE not in names else name
        if name in found:
            raise InvalidInput(f"{wanted}; it has {name!r} twice")
        if name not in names:
            raise InvalidInput(f"{wanted}; it has {name[:MAX_SHOWN]!r}")
        found[name] = file
    if lost := [name for name in needed if name not in found]:
        raise InvalidInput(f"{wanted}; it has no {lost[0]}")
    return found


def _read(body: bytes, boundary: bytes, *, named: bool) -> list[File]:
    _check_boundaries(body, boundary)
    reader = _Reader(boundary)
    try:
        reader.parser.write(body)
    except FormParserError as error:
        raise InvalidInput(f"the form is damaged: {error}") from error
    if not reader.ended:
        raise InvalidInput("the form is cut off: its closing boundary is missing")
    if not reader.files:
        raise InvalidInput(f"the form has no file; send one, as {EXAMPLE} does")
    for number, each in enumerate(reader.files, 1):
        _check_file(each, f"part {number} of the form", named=named)
    return reader.files


class _Reader:
    """Collects the parts that the parser finds.

    Args:
        boundary: separates the parts.

    Attributes:
        files: all parts, including those that are not files.
        ended: whether the closing boundary has been found.
    """

    def __init__(self, boundary: bytes) -> None:
        self.files: list[File] = []
        self.ended = False
        self._name = self._value = b""
        self.parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._take_name,
                "on_header_value": self._take_value,
                "on_header_end": self._end_header,
                "on_part_data": self._take_data,
                "on_end": self._end,
            },
            max_header_count=MAX_PART_HEADERS,
            max_header_size=MAX_PART_HEADER_BYTES,
        )

    def _begin(self) -> None:
        self.files.append(File())

    def _take_name(self, data: bytes, start: int, end: int) -> None:
        self._name, self._value = data[start:end].lower(), b""

    def _take_value(self, data: bytes, start: int, end: int) -> None:
        self._value = data[start:end]

    def _end_header(self) -> None:
        file = self.files[-1]
        if self._name in file.headers:
            file.repeated = self._name
        file.headers[self._name] = self._value

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        self.files[-1].data += data[start:end]  # once, or in two pieces

    def _end(self) -> None:
        self.ended = True


def _boundary(content_type: str) -> bytes:
    if len(content_type) > MAX_CONTENT_TYPE_CHARACTERS:
        raise InvalidInput(
            f"the Content-Type has {len(content_type)} characters; for a form the limit is "
            f"{MAX_CONTENT_TYPE_CHARACTERS}"
        )
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not boundary:
        raise InvalidInput(
            f"the Content-Type {FORM} has no boundary; let the client that builds the form set "
            f"this header, as in {EXAMPLE}"
        )
    if len(boundary) > MAX_BOUNDARY_BYTES:
        raise InvalidInput(
            f"the form's boundary has {len(boundary)} bytes; the limit is {MAX_BOUNDARY_BYTES}"
        )
    return boundary


def _count(body: bytes, boundary: bytes) -> int:
    """The number of parts, before any is parsed."""
    if not body.startswith(b"--" + boundary):
        raise InvalidInput(
            "the body does not begin with the boundary in its Content-Type; let the client that "
            f"builds the form set this header, as in {EXAMPLE}"
        )
    return body.count(b"\r\n--" + boundary)


def _check_boundaries(body: bytes, boundary: bytes) -> None:
    """Reject boundaries that are slow to parse."""
    delimiter = b"\r\n--" + boundary
    at = -2  # no line end precedes the first boundary
    while at != -1:
        behind = at + len(delimiter)
        if body[behind : behind + 2] not in (b"\r\n", b"--"):
            raise InvalidInput(
                f"the form is damaged: at byte {behind} no line end follows the boundary"
            )
        at = body.find(delimiter, behind)


def _check_file(file: File, where: str, *, named: bool) -> None:
    if file.repeated:
        raise InvalidInput(
            f"{where} has the header {file.repeated[:20].decode('latin-1')!r} more than once; send "
            "it once"
        )
    disposition = file.headers.get(b"content-disposition", b"")
    if named and HAS_FILENAME.search(disposition) is None:
        raise InvalidInput(
            f"{where} is not a file: its Content-Disposition has no filename; send only files, "
            f"as {EXAMPLE} does, and put options in the URL"
        )
    encoding = file.headers.get(b"content-transfer-encoding", b"").strip().lower()
    if encoding not in IDENTITY_ENCODINGS:
        raise InvalidInput(
            f"{where} has the Content-Transfer-Encoding {encoding[:20].decode('latin-1')!r}; "
            "send the file's bytes without encoding them"
        )
    if not file.data:
        raise InvalidInput(f"{where} is an empty file")
