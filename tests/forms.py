"""Bodies of multipart/form-data, byte by byte as curl writes them."""

from __future__ import annotations

BOUNDARY = "------------------------0123456789abcdef"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


def part(data: bytes, *, filename: str | None = "x.bin", **headers: str) -> bytes:
    """Head and data of a part; underscores in header names stand for dashes."""
    named = "" if filename is None else f'; filename="{filename}"'
    lines = [f'Content-Disposition: form-data; name="file"{named}\r\n']
    lines += [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    return "".join(lines).encode("latin-1") + b"\r\n" + data


def form(*parts: bytes, boundary: str = BOUNDARY) -> bytes:
    """The whole body."""
    between = f"--{boundary}\r\n".encode()
    return b"".join(between + each + b"\r\n" for each in parts) + f"--{boundary}--\r\n".encode()


def files(*data: bytes, content_type: str = "application/octet-stream") -> bytes:
    """A form of files, each with this Content-Type."""
    return form(*(part(each, Content_Type=content_type) for each in data))
