"""Prediction requests for a model with one float input: each with an input of its own."""

from __future__ import annotations

import itertools

import numpy as np
import orjson

from models.manifest import Manifest
from models.tensors import Array

BASES = 256  # different pictures, prepared beforehand
NOISE = 0.3  # of a standard deviation: what is scribbled is still a digit
DECIMALS = 5
# The first number of a request is its own: 0.0000000, 0.0000001 ... all different in float32 too.
OWN_DIGITS = 7
HEADERS = "Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"


class Requests:
    """Makes requests POST /predict whose inputs never repeat: only the model can answer them.

    The inputs are the manifest's golden ones under noise. Almost all of a request is prepared here:
    making one while the clock runs is a copy.

    Args:
        manifest: of the model; it has one input without free dimensions.
        seed: of the noise.

    Raises:
        ValueError: if the model's input is another one.
    """

    def __init__(self, manifest: Manifest, seed: int) -> None:
        spec = manifest.inputs[0]
        if len(manifest.inputs) > 1 or not spec.is_fixed or not spec.dtype.startswith("float"):
            raise ValueError(f"{manifest.model} does not take one float array of a fixed shape")
        rng = np.random.default_rng(seed)
        goldens = [example.inputs[spec.name].array() for example in manifest.golden]
        bodies = [_split(_noisy(goldens[n % len(goldens)], rng)) for n in range(BASES)]
        self.body_bytes = round(np.mean([len(a) + 2 + OWN_DIGITS + len(b) for a, b in bodies]))
        self._bodies = itertools.cycle(bodies)
        self._requests = itertools.cycle([(_head(a, b) + a, b) for a, b in bodies])
        self._own = itertools.count()

    def body(self) -> bytes:
        """The JSON body of a new request."""
        before, after = next(self._bodies)
        return b"%b0.%07d%b" % (before, self._next_own(), after)

    def request(self) -> bytes:
        """A new request, head and body."""
        before, after = next(self._requests)
        return b"%b0.%07d%b" % (before, self._next_own(), after)

    def _next_own(self) -> int:
        own = next(self._own)
        if own >= 10**OWN_DIGITS:
            raise ValueError(f"all {own} different inputs are used up; ask for fewer seconds")
        return own


def _noisy(golden: Array, rng: np.random.Generator) -> Array:
    noise = rng.normal(0, NOISE, golden.shape)
    return np.asarray(np.round(golden.astype(np.float64) + noise, DECIMALS))


def _split(item: Array) -> tuple[bytes, bytes]:
    """A body before and after its first number."""
    text = orjson.dumps({"input": item.tolist()})
    end = text.index(b",")
    return text[: text.rindex(b"[", 0, end) + 1], text[end:]


def _head(before: bytes, after: bytes) -> bytes:
    length = len(before) + 2 + OWN_DIGITS + len(after)
    return f"POST /predict HTTP/1.1\r\n{HEADERS.format(length=length)}\r\n".encode("ascii")
