"""The requests of one run: prepared, except for the numbers that make each input unique."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from loadtests.bench.dialects import JSON, OCTET_STREAM, Dialect
from loadtests.bench.workloads import Workload
from loadtests.errors import LoadTestError
from loadtests.traffic.sentences import sentence
from models.manifest import Manifest
from models.tensors import Array

TEMPLATES = 256  # different single inputs; fewer where they are large
TEMPLATE_BYTES = 4 * 1024 * 1024
NOISE = 0.3  # of a standard deviation: a noisy digit is still a digit
DECIMALS = 5
OWN_DIGITS = 7  # 0.0000000, 0.0000001 ... all differ in float32 too
OWN_NUMBERS = 2**23  # and as many mantissas
KNOWN_FROM = 8_000_000  # own numbers from here on are for requests whose answers are compared
MARK = 1234567.5  # placeholder in an item's first place; no input is near it
ZIPF_EXPONENT = 1.0
FRAME = "Inference-Header-Content-Length"
TEXTS = 16_384  # in all requests of a run; the answers to an eighth are compared
SEED_TEXTS = 2**20  # sentence numbers between the first ones of two seeds
TURNS = 20_000  # drawn by Zipf's law, then repeated


class BodiesError(LoadTestError):
    """Requests for this model cannot be built, or have run out; the message says why."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Requests to one server: number n is complete once its own numbers are filled in.

    Attributes:
        form: `json`, `binary`, or `none` if requests repeat.
        templates: HTTP requests or gRPC messages, in pieces; an own number goes between each two.
        items: float32 [templates, items, *shape], without own numbers; or texts [templates, items].
        order: the templates of successive requests, repeated.
        known_from: the first request reserved for comparing answers.
    """

    form: str
    templates: tuple[tuple[bytes, ...], ...]
    items: Array
    order: tuple[int, ...]
    known_from: int

    @property
    def own_per_request(self) -> int:
        """Own numbers of one request: one for each of its items."""
        return len(self.templates[0]) - 1

    @property
    def request_bytes(self) -> int:
        """Bytes of the first request."""
        return len(self.request(0))

    def request(self, number: int) -> bytes:
        """Return the complete HTTP request or message.

        Raises:
            BodiesError: if there are no further different ones.
        """
        pieces = self.templates[self.order[number % len(self.order)]]
        parts = [pieces[0]]
        for piece, own in zip(pieces[1:], self._owns(number), strict=True):
            parts += [own_json(own) if self.form == "json" else own_binary(own), piece]
        return b"".join(parts)

    def inputs(self, number: int) -> Array:
        """Return the items of the request, float32 [items, *shape]."""
        items: Array = self.items[self.order[number % len(self.order)]].copy()
        for item, own in zip(items, self._owns(number), strict=False):
            text = own_json(own) if self.form == "json" else b""
            value = float(text) if text else np.frombuffer(own_binary(own), "<f4")[0]
            item.flat[0] = value
        return items

    def one_after_the_other(self) -> Bodies:
        """Return the same requests, each in turn."""
        return dataclasses.replace(self, order=tuple(range(len(self.templates))))

    def write(self, file: Path) -> None:
        """Write the requests for `wrk/requests.lua`, which describes the format."""
        head = f"{len(self.templates)} {self.form} {len(self.order)}\n"
        lengths = (" ".join(str(len(piece)) for piece in each) for each in self.templates)
        with file.open("wb") as out:
            out.write(head.encode())
            out.write(" ".join(map(str, self.order)).encode() + b"\n")
            out.writelines(line.encode() + b"\n" for line in lengths)
            out.writelines(piece for each in self.templates for piece in each)

    def _owns(self, number: int) -> range:
        owners = self.own_per_request
        if (number + 1) * owners > OWN_NUMBERS:
            raise BodiesError(f"all {number} different requests are used; ask for fewer seconds")
        return range(number * owners, (number + 1) * owners)


def own_json(own: int) -> bytes:
    """Return a number below 1 that is distinct in float32."""
    return b"0.%07d" % own


def own_binary(own: int) -> bytes:
    """Return a unique little-endian float32 of 0.5 to 1."""
    return bytes((own & 255, own >> 8 & 255, own >> 16 & 127, 63))


def bodies_of(workload: Workload, manifest: Manifest, dialect: Dialect, seed: int) -> Bodies:
    """Build the requests of a workload to one server.

    Args:
        workload: says how many items and which form.
        manifest: of the model, which has one floating-point input of a fixed shape.
        dialect: the server's.
        seed: of the noise; different seeds give different inputs.

    Raises:
        BodiesError: if the model has other inputs.
    """
    if workload.is_text:
        return _text_bodies(workload, dialect, seed)
    spec = manifest.inputs[0]
    if len(manifest.inputs) > 1 or not spec.is_fixed or not spec.dtype.startswith("float"):
        raise BodiesError(f"{manifest.model} does not accept one float array of a fixed shape")
    rng = np.random.default_rng(seed)
    item_bytes = 4 * int(np.prod(spec.item_shape))
    count = workload.repeated or _between(TEMPLATE_BYTES // (item_bytes * workload.items))
    items = _noisy(manifest, rng, count * workload.items)
    items = items.reshape(count, workload.items, *spec.item_shape)
    many = workload.items > 1
    kind = "json" if workload.body == "json" else "binary"
    if kind == "binary":
        split = [_binary_pieces(each, dialect) for each in items]
    else:
        split = [_json_pieces(each, dialect, many=many) for each in items]
    form = kind if not workload.repeated else "none"
    media_type = OCTET_STREAM if kind == "binary" else JSON
    templates: list[tuple[bytes, ...]] = []
    for pieces in split:
        head = b""
        if workload.body != "grpc":
            head = _head(dialect.path(many=many), media_type, pieces, kind)
        whole = (head + pieces[0], *pieces[1:])
        templates.append(whole if not workload.repeated else (_filled(whole, items, templates),))
    order = _zipf(count, rng) if workload.repeated else tuple(range(count))
    owners = len(templates[0]) - 1
    return Bodies(form, tuple(templates), items, order, KNOWN_FROM // max(1, owners))


def _text_bodies(workload: Workload, dialect: Dialect, seed: int) -> Bodies:
    """Build complete requests: a text has no place for an own number."""
    count = workload.repeated or TEXTS // workload.items
    first, many = seed * SEED_TEXTS, workload.items > 1
    texts = [sentence(number) for number in range(first, first + count * workload.items)]
    items = np.array(texts).reshape(count, workload.items)
    templates = []
    for each in items:
        pieces = (orjson.dumps(dialect.json_body(each, many=many)),)
        templates.append((_head(dialect.path(many=many), JSON, pieces, "json") + pieces[0],))
    order, known_from = tuple(range(count)), count - count // 8
    if workload.repeated:
        order, known_from = _zipf(count, np.random.default_rng(seed)), KNOWN_FROM
    return Bodies("none", tuple(templates), items, order, known_from)


def _zipf(count: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Draw an order in which the first items come far more often than the last."""
    weights = 1 / np.arange(1, count + 1) ** ZIPF_EXPONENT
    return tuple(rng.choice(count, TURNS, p=weights / weights.sum()).tolist())


def _filled(whole: tuple[bytes, ...], items: Array, before: list[tuple[bytes, ...]]) -> bytes:
    """Build a request that repeats: its own number is permanently that of its place."""
    own = own_json(len(before))
    items[len(before)].flat[0] = float(own)
    return own.join(whole)


def _between(fitting: int) -> int:
    return max(4, min(TEMPLATES, fitting))


def _noisy(manifest: Manifest, rng: np.random.Generator, count: int) -> Array:
    """Add noise to golden inputs, float32 [count, *shape], exact in a few decimals."""
    name = manifest.inputs[0].name
    goldens = [example.inputs[name].array() for example in manifest.golden]
    base = np.stack([goldens[index % len(goldens)] for index in range(count)])
    # each item has its own brightness, or the means of large items would be about equal
    brightness = rng.normal(0, NOISE, (count, *(1 for _ in base.shape[1:])))
    noisy = base.astype(np.float64) + brightness + rng.normal(0, NOISE, base.shape)
    return np.round(noisy, DECIMALS).astype(np.float32)


def _json_pieces(items: Array, dialect: Dialect, *, many: bool) -> tuple[bytes, ...]:
    """Split a JSON body at the first number of each item, which is removed."""
    marked = np.round(items.astype(np.float64), DECIMALS)  # short again: 0.1, not 0.10000000149
    marked.reshape(len(items), -1)[:, 0] = MARK
    text = orjson.dumps(dialect.json_body(marked, many=many))
    return tuple(text.split(str(MARK).encode()))


def _binary_pieces(items: Array, dialect: Dialect) -> tuple[bytes, ...]:
    """Split a float32 body at the first four bytes of each item, which are removed."""
    return (dialect.framed(items), *(each.astype("<f4").tobytes()[4:] for each in items))


def _head(path: str, media_type: str, pieces: tuple[bytes, ...], body: str) -> bytes:
    own_bytes = 4 if body == "binary" else 2 + OWN_DIGITS
    length = sum(map(len, pieces)) + own_bytes * (len(pieces) - 1)
    framed = f"{FRAME}: {len(pieces[0])}\r\n" if body == "binary" and pieces[0] else ""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{framed}"
        f"Content-Type: {media_type}\r\nContent-Length: {length}\r\n\r\n"
    ).encode("ascii")
