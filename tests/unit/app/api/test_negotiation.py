"""The media type of an answer, by the caller's Accept header (RFC 9110, section 12.5.1)."""

from __future__ import annotations

import pytest

from app.api.negotiation import (
    ANYTHING,
    ELEMENT,
    MAY,
    MUST,
    NEVER,
    PARAMETER,
    WANTS_JSON,
    check_accepted,
    fields_of,
    gzip_of,
    preferred,
)
from app.codecs.base import JSON, NPY, OCTET_STREAM, PNG
from app.errors import NotAcceptable

OFFERS = (JSON, OCTET_STREAM, NPY, PNG)
NAVIGATION = (
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;"
    "q=0.8,application/signed-exchange;v=b3;q=0.7"
)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("application/json", JSON),
        ("application/octet-stream", OCTET_STREAM),
        ("Application/X-NPY", NPY),
        ("text/html, application/x-npy;q=0.9, */*;q=0.1", NPY),
        ("application/json;q=0.2, application/x-npy;q=0.8", NPY),
        # The most specific range decides on a type, wherever it is.
        ("*/*, application/json;q=0.1", OCTET_STREAM),
        ("*/*;q=0.5, application/json;q=0", OCTET_STREAM),
        ("application/*, application/json;q=0, application/octet-stream;q=0", NPY),
        ("application/octet-stream;q=0, application/x-npy", NPY),
        ("*/*;q=0, image/*;q=0.001", PNG),
        # Equal weights: what is named, then the caller's order, then ours.
        ("*/*, image/png", PNG),
        ("application/x-npy, application/json", NPY),
        ("image/*, application/*", PNG),
        ("application/*", JSON),
        ("image/*", PNG),
        # Parameters, blanks, quotes, empty elements.
        ("application/json; charset=UTF-8", JSON),
        ('application/json;charset="utf-8" ; Q=1.000', JSON),
        ('text/html;a="x,application/x-npy;q=1", image/png;q=0.1', PNG),
        (",, ,application/x-npy ,", NPY),
        (" , ,", JSON),
        ("application/x-npy;;q=0.5", NPY),
        ("*/*;level=1", JSON),
        # Malformed elements match nothing; others count.
        ("application/x-npy;q=much, application/json;q=0.1", JSON),
        ("application/json;q=0.1,;,;;,;q=1", JSON),
        ("application/x-npy;q=1.1, application/json;q=0.1", JSON),
        ("application/x-npy;q=-1, json, /, */png, a b/c, application/json;q=0.1", JSON),
        # What clients send.
        (NAVIGATION, JSON),
        ("image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8", PNG),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", JSON),
        ("application/vnd.api+json, application/json;odata=verbose, application/json;q=0.9", JSON),
    ],
)
def test_preferred_media_type(accept: str, chosen: str) -> None:
    assert preferred(accept.encode("latin-1"), OFFERS) == chosen


@pytest.mark.parametrize(
    "accept",
    [
        *("text/html", "text/*", "application/json;q=0", "*/*;q=0", "*/*;q=0.000", "image/webp"),
        *("application/json;odata=verbose", "application/json;charset=latin-1", "json", '"'),
        *("application/x-npy;q=much", "*/json", "application/json;q=", "application/jsonp", "\xff"),
    ],
)
def test_unacceptable(accept: str) -> None:
    with pytest.raises(NotAcceptable, match="application/json or application/octet-stream or"):
        preferred(accept.encode("latin-1"), OFFERS)
    with pytest.raises(NotAcceptable, match="can only be application/json"):
        check_accepted(accept.encode("latin-1"), JSON)


def test_usual_headers_are_decided_as_if_they_were_parsed() -> None:
    assert {preferred(each, OFFERS) for each in WANTS_JSON} == {JSON}
    for each in ANYTHING:
        check_accepted(each, PNG)


@pytest.mark.parametrize("header", ['"', '"\\', '"\\"', 'a"' + '\\"' * 2000 + "\\", '"\n"', '""\\'])
def test_no_text_is_looked_at_twice(header: str) -> None:
    """A text that matched nothing would be tried again from each place: in quadratic time."""
    for of in (ELEMENT, PARAMETER):
        assert of.findall(header) == [header]


def test_long_headers_are_not_parsed() -> None:
    with pytest.raises(NotAcceptable, match="Accept has 4100 bytes, the limit is 4096"):
        preferred(b"a/b," * 1025, OFFERS)


def test_all_lines_of_a_list_count() -> None:
    headers = [(b"accept", b"a/b"), (b"host", b"a"), (b"accept", b"c/d;q=0"), (b"x", b"1")]
    assert fields_of(headers) == {b"accept": b"a/b, c/d;q=0", b"host": b"a", b"x": b"1"}
    assert fields_of([*headers, (b"x", b"2")])[b"x"] == b"2"


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        *(("", NEVER), ("identity", NEVER), ("deflate", NEVER), ("xgzip, gzipx", NEVER)),
        *(("gzip", MAY), ("GZIP ; q=0.001", MAY), ("deflate, br, gzip", MAY), ("*", MAY)),
        *(("x-gzip", MAY), ("gzip, identity;q=0.5", MAY), ("gzip;q=0.5, *;q=0.5", MAY)),
        *(("gzip; q=0.000", NEVER), ("*, gzip;q=0", NEVER), ("gzip;q=0.5, identity", NEVER)),
        *(("gzip;q=much", NEVER), ("gzip;q=0.2, *;q=0.9", NEVER), ("*;q=0, identity", NEVER)),
        *(("gzip, identity;q=0", MUST), ("gzip, *;q=0", MUST), ("identity;q=0, *;q=0.1", MUST)),
    ],
)
def test_gzip_by_accept_encoding(header: str, wanted: int) -> None:
    assert gzip_of(header.encode()) == wanted


@pytest.mark.parametrize("header", ["identity;q=0", "*;q=0", "br, *;q=0", "a," * 2049])
def test_no_acceptable_coding(header: str) -> None:
    with pytest.raises(NotAcceptable, match="Accept-Encoding"):
        gzip_of(header.encode())
