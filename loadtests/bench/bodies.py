"""The requests of one run: prepared, except for the numbers that make each input unique."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from loadtests.bench.dialects import JSON, OCTET_STREAM, BenchDialect
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
MARK = 1234567.5  # placeholder in an item's first place; no input is near it
FRAME = "Inference-Header-Content-Length"
TEXTS = 16_384  # in all requests of a run
SEED_TEXTS = 2**20  # sentence numbers between the first ones of two seeds
TURNS = 20_000  # drawn by Zipf's law, then repeated


class BodiesError(LoadTestError):
    """Requests for this model cannot be built, or have run out; the message says why."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Requests to one server: number n is complete once its own numbers are filled in.

    Attributes:
        form: `json`, `binary`, or `none` if requests repeat.
        templates: HTTP requests, in pieces; an own number goes between each two.
        order: the templates of successive requests, repeated.
        most: how many different ones there are.
    """

    form: str
    templates: tuple[tuple[bytes, ...], ...]
    order: tuple[int, ...]
    most: int

    def request(self, number: int) -> bytes:
        """Return the complete HTTP request.

        Raises:
            BodiesError: if there are no further different ones.
        """
        pieces = self.templates[self.order[number % len(self.order)]]
        parts = [pieces[0]]
        for piece, own in zip(pieces[1:], self._owns(number), strict=True):
            parts += [own_json(own) if self.form == "json" else own_binary(own), piece]
        return b"".join(parts)

    def call(self, number: int) -> tuple[str, dict[str, str], bytes]:
        """Return the path, the headers and the body of a request.

        Raises:
            BodiesError: if there are no further different ones.
        """
        head, _, body = self.request(number).partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        return first.split(" ")[1], dict(line.split(": ") for line in lines), body

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
        owners = len(self.templates[0]) - 1  # one for each item
        if (number + 1) * owners > OWN_NUMBERS:
            raise BodiesError(f"all {number} different requests are used; ask for fewer seconds")
        return range(number * owners, (number + 1) * owners)


def own_json(own: int) -> bytes:
    """Return a number below 1 that is distinct in float32."""
    return b"0.%07d" % own


def own_binary(own: int) -> bytes:
    """Return a unique little-endian float32 of 0.5 to 1."""
    return bytes((own & 255, own >> 8 & 255, own >> 16 & 127, 63))


def bodies_of(workload: Workload, manifest: Manifest, dialect: BenchDialect, seed: int) -> Bodies:
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
    fitting = TEMPLATE_BYTES // (item_bytes * workload.items)
    count = workload.repeated or max(4, min(TEMPLATES, fitting))
    items = _noisy(manifest, rng, count * workload.items)
    items = items.reshape(count, workload.items, *spec.item_shape)
    many = workload.items > 1
    kind, path = workload.body, dialect.batch_path if many else dialect.path
    if kind == "binary":
        bodies = [_binary_pieces(each, dialect) for each in items]
    else:
        bodies = [_json_pieces(each, dialect, many=many) for each in items]
    form = kind if not workload.repeated else "none"
    media_type = OCTET_STREAM if kind == "binary" else JSON
    templates: list[tuple[bytes, ...]] = []
    for pieces in bodies:
        whole = (_head(path, media_type, pieces, kind) + pieces[0], *pieces[1:])
        # a request that repeats: its own number is permanently that of its place
        templates.append((own_json(len(templates)).join(whole),) if workload.repeated else whole)
    order = tuple(range(count))  # each once, which fills the cache
    if workload.repeated:
        weights = 1 / np.arange(1, count + 1)  # Zipf's law
        order += tuple(rng.choice(count, TURNS, p=weights / weights.sum()).tolist())
    owners = len(templates[0]) - 1
    return Bodies(form, tuple(templates), order, OWN_NUMBERS // max(1, owners))


def _text_bodies(workload: Workload, dialect: BenchDialect, seed: int) -> Bodies:
    """Build complete requests: a text has no place for an own number."""
    count = TEXTS // workload.items
    first, many = seed * SEED_TEXTS, workload.items > 1
    path = dialect.batch_path if many else dialect.path
    texts = [sentence(number) for number in range(first, first + count * workload.items)]
    items = np.array(texts).reshape(count, workload.items)
    templates = []
    for each in items:
        pieces = (orjson.dumps(dialect.body(each, many)),)
        templates.append((_head(path, JSON, pieces, "json") + pieces[0],))
    return Bodies("none", tuple(templates), tuple(range(count)), count)


def _noisy(manifest: Manifest, rng: np.random.Generator, count: int) -> Array:
    """Add noise to golden inputs, float32 [count, *shape], exact in a few decimals."""
    name = manifest.inputs[0].name
    goldens = [example.inputs[name].array() for example in manifest.golden]
    base = np.stack([goldens[index % len(goldens)] for index in range(count)])
    # each item has its own brightness, or the means of large items would be about equal
    brightness = rng.normal(0, NOISE, (count, *(1 for _ in base.shape[1:])))
    noisy = base.astype(np.float64) + brightness + rng.normal(0, NOISE, base.shape)
    return np.round(noisy, DECIMALS).astype(np.float32)


def _json_pieces(items: Array, dialect: BenchDialect, *, many: bool) -> tuple[bytes, ...]:
    """Split a JSON body at the first number of each item, which is removed."""
    numbers = np.round(items.astype(np.float64), DECIMALS)  # short again: 0.1, not 0.10000000149
    numbers.reshape(len(items), -1)[:, 0] = MARK
    text = orjson.dumps(dialect.body(numbers, many))
    return tuple(text.split(str(MARK).encode()))


def _binary_pieces(items: Array, dialect: BenchDialect) -> tuple[bytes, ...]:
    """Split a float32 body at the first four bytes of each item, which are removed."""
    return (dialect.prefix(items), *(each.astype("<f4").tobytes()[4:] for each in items))


def _head(path: str, media_type: str, pieces: tuple[bytes, ...], body: str) -> bytes:
    own_bytes = 4 if body == "binary" else 2 + OWN_DIGITS
    length = sum(map(len, pieces)) + own_bytes * (len(pieces) - 1)
    frame_header = f"{FRAME}: {len(pieces[0])}\r\n" if body == "binary" and pieces[0] else ""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{frame_header}"
        f"Content-Type: {media_type}\r\nContent-Length: {length}\r\n\r\n"
    ).encode("ascii")
