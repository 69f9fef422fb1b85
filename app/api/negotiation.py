"""What callers accept (RFC 9110, sections 12.5.1 and 12.5.3): media types and gzip of answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from app.errors import NotAcceptable

# Lists may come in several lines (section 5.3).
LISTS = (b"accept", b"accept-encoding", b"content-encoding")
ANYTHING = frozenset((b"", b"*/*"))
# Defaults of clients, which want JSON whatever else there is: curl and requests; httpx, Postman;
# axios; HTTPie; Spring; Java's HttpURLConnection.
WANTS_JSON = ANYTHING | frozenset(
    (
        *(b"application/json", b"application/json, */*", b"application/json,*/*"),
        *(b"application/json, text/plain, */*", b"application/json,text/plain,*/*"),
        *(b"application/json, */*;q=0.5", b"application/json, application/*+json"),
        b"text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2",
    )
)
MAX_BYTES = 4096  # of a header that is parsed; parsing takes about 1 us for each media type
MAX_KNOWN = 256
MAX_SHOWN = 80
# An element of a list, or a parameter: quoted text may contain the separator. Text that is never
# closed matches to its end, whatever it is, so that no header takes quadratic time.
ELEMENT = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*(?:"|\\?\Z))+', re.DOTALL)
PARAMETER = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*(?:"|\\?\Z))+', re.DOTALL)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
WEIGHT = re.compile(r"0?\.[0-9]{1,9}|[01](?:\.[0-9]{0,9})?")
UTF_8 = frozenset(("utf-8", "utf8"))
GZIP = ("gzip", "x-gzip")
# Whether an answer is compressed: never; if it is worth it; always, as its caller demands.
NEVER, MAY, MUST = 0, 1, 2


class Range(NamedTuple):
    """A media range of an Accept header.

    Attributes:
        specificity: 2 for a media type, 1 for `type/*`, 0 for `*/*`.
    """

    kind: str
    subtype: str
    weight: float
    specificity: int

    def matches(self, media_type: str) -> bool:
        """Whether it includes a media type."""
        kind, _, subtype = media_type.partition("/")
        return self.kind in ("*", kind) and self.subtype in ("*", subtype)


def fields_of(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name: the last value of each, but all lines of lists."""
    fields = dict(headers)
    if len(fields) != len(headers):
        for name in LISTS:
            if name in fields:
                fields[name] = b", ".join(value for each, value in headers if each == name)
    return fields


def preferred(accept: bytes, offers: tuple[str, ...]) -> str:
    """The offered media type that an Accept header prefers.

    Of equal weight, a type that the header names precedes those that it includes by a wildcard;
    then the order of the header counts, then that of the offers.

    Args:
        accept: the header, all lines of it; empty if there is none.
        offers: the media types in which the answer can be written, the default first.

    Raises:
        NotAcceptable: if it accepts none of them.
    """
    if len(accept) > MAX_BYTES:
        raise NotAcceptable(
            f"Accept has {len(accept)} bytes, the limit is {MAX_BYTES}; request one of "
            f"{', '.join(offers)}"
        )
    found = _preferred(accept, offers)
    if found is None:
        raise NotAcceptable(
            f"Accept is {accept[:MAX_SHOWN].decode('latin-1')!r}, but this answer can only be "
            f"{' or '.join(offers)}"
        )
    return found


def check_accepted(accept: bytes, media_type: str) -> None:
    """Reject a request whose answer, in this media type, its caller does not accept.

    Raises:
        NotAcceptable: with the media type.
    """
    if accept not in ANYTHING:
        preferred(accept, (media_type,))


@lru_cache(MAX_KNOWN)
def _preferred(accept: bytes, offers: tuple[str, ...]) -> str | None:
    elements = _elements(accept)
    if not elements:
        return offers[0]
    ranges = [each for each in map(_range, elements) if each is not None]
    best: str | None = None
    best_rank = (0.0, 0, 0)
    for offer in offers:
        matching = [
            (each.specificity, each.weight, -at)
            for at, each in enumerate(ranges)
            if each.matches(offer)
        ]
        if matching:
            specificity, weight, before = max(matching)
            rank = (weight, specificity, before)
            if weight > 0 and (best is None or rank > best_rank):
                best, best_rank = offer, rank
    return best


def _elements(header: bytes) -> list[str]:
    found = ELEMENT.findall(header.decode("latin-1").lower())
    return [each.strip() for each in found if each.strip()]


def _range(element: str) -> Range | None:
    """The media range of an element; None if it is malformed, or matches no answer.

    No answer has parameters, except that texts are in UTF-8.
    """
    parts: list[str] = PARAMETER.findall(element)
    if not parts:
        return None
    name, *parameters = map(str.strip, parts)
    kind, slash, subtype = name.partition("/")
    if name == "*":  # Java's HttpURLConnection sends it
        kind, slash, subtype = "*", "/", "*"
    if not slash or TOKEN.fullmatch(kind) is None or TOKEN.fullmatch(subtype) is None:
        return None
    if kind == "*" and subtype != "*":
        return None
    weight = 1.0
    for each in parameters:
        key, _, value = (part.strip() for part in each.partition("="))
        if key == "q":
            found = _weight(value)
            if found is None:
                return None
            weight = found
        elif each and subtype != "*" and not (key == "charset" and value.strip('"') in UTF_8):
            return None
    return Range(kind, subtype, weight, 2 if subtype != "*" else 1 if kind != "*" else 0)


def _weight(text: str) -> float | None:
    """The value of a parameter `q`; None if it is malformed."""
    found = float(text) if WEIGHT.fullmatch(text) is not None else 2.0
    return found if found <= 1 else None


@lru_cache(MAX_KNOWN)
def gzip_of(accept_encoding: bytes) -> int:
    """Whether an answer may or must be compressed with gzip, by an Accept-Encoding header.

    Returns:
        `NEVER`, `MAY`, or `MUST` if the header excludes answers without a coding.

    Raises:
        NotAcceptable: if it excludes both.
    """
    if len(accept_encoding) > MAX_BYTES:
        raise NotAcceptable(
            f"Accept-Encoding has {len(accept_encoding)} bytes, the limit is {MAX_BYTES}"
        )
    weights: dict[str, float] = {}
    for element in _elements(accept_encoding):
        coding, *parameters = (each.strip() for each in element.split(";"))
        given = [each.partition("=")[2] for each in parameters if re.match(r"q\s*=", each)]
        weight = _weight(given[0].strip()) if given else 1.0
        if weight is not None:
            weights[coding] = weight
    others = weights.get("*")
    gzip = max((weights[each] for each in GZIP if each in weights), default=others or 0.0)
    plain = weights.get("identity", others)
    if plain != 0:  # acceptable unless it is excluded
        return MAY if gzip > 0 and gzip >= (plain or 0.0) else NEVER
    if gzip > 0:
        return MUST
    raise NotAcceptable(
        f"Accept-Encoding is {accept_encoding[:MAX_SHOWN].decode('latin-1')!r}, but answers can "
        "only be uncoded (identity) or in gzip"
    )
