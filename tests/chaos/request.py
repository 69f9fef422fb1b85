"""A request of a chaos run: its bytes, and what a right answer to it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tests.chaos.truth import Item

OCTETS = "application/octet-stream"
NPY = "application/x-npy"
JSON = "application/json"

Form = Literal["json", "octets", "npy", "v2", "v2-binary", "sse", "ndjson"]
MEDIA_TYPES: dict[Form, str] = {
    **{"json": JSON, "octets": OCTETS, "npy": NPY},  # of our own calls
    **{"v2": JSON, "v2-binary": OCTETS},  # of the Open Inference Protocol
    **{"sse": "text/event-stream", "ndjson": "application/x-ndjson"},  # of streams
}
V2: frozenset[Form] = frozenset({"v2", "v2-binary"})
JSON_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Request:
    """What is asked.

    Attributes:
        id: sent as X-Request-Id; the answer must carry it.
        path: where to.
        body: as it is sent.
        model: that is to answer.
        version: that is to answer; None: whichever is served.
        items: that the body holds; none where it is not what a model takes.
        many: whether it is a batch.
        form: of the answer.
        headers: beside those that every request has.
        refusals: codes of the errors that are a right answer, beside what its items deserve.
        culprit: the index that a refusal as invalid must name.
        predicts: whether predictions are a right answer.
        method: of HTTP.
    """

    id: str
    path: str
    body: bytes
    model: str = ""
    version: int | None = None
    items: Sequence[Item] = ()
    many: bool = False
    form: Form = "json"
    headers: Sequence[tuple[str, str]] = ()
    refusals: frozenset[str] = field(default_factory=frozenset)
    culprit: int | None = None
    predicts: bool = True
    method: str = "POST"

    def head(self, version: str = "1.1", length: int | None = None) -> bytes:
        """The head; `length` says that the body is longer or shorter than it is."""
        lines = [f"{self.method} {self.path} HTTP/{version}", "Host: loopback"]
        lines.append(f"X-Request-Id: {self.id}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        if length is None or length >= 0:
            lines.append(f"Content-Length: {len(self.body) if length is None else length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    @property
    def bytes(self) -> bytes:
        """All of it."""
        return self.head() + self.body

    def told(self) -> str:
        """Everything that is needed to send it again."""
        body = self.body if len(self.body) <= 2000 else self.body[:2000] + b"..."
        return f"{self.head().decode()}{body!r}\nitems: {[tuple(each) for each in self.items]}"


def in_chunks(request: Request, size: int) -> bytes:
    """All of a request, with its body in chunks of this size."""
    chunks = (request.body[at : at + size] for at in range(0, len(request.body), size))
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return request.head(length=-1) + body + b"0\r\n\r\n"


def body_of(items: Sequence[Item], form: Form, *, many: bool) -> bytes:
    """Items as a request's body."""
    values = [item.values() for item in items]
    if form == "json":
        shown = {"inputs": values} if many else {"input": values[0]}
        return json.dumps(shown).encode()
    if form in V2:
        return b"".join(infer_of(values, form))
    array = np.array(values if many else values[0], "<f4")
    if form == "octets":
        return array.tobytes()
    return npy_of(array)


def infer_of(values: Sequence[Sequence[int]], form: Form) -> tuple[bytes, bytes]:
    """JSON and bytes of an infer request."""
    tensor: dict[str, object] = {"name": "x", "shape": [len(values), 3], "datatype": "FP32"}
    if form == "v2":
        tensor["data"] = [each for row in values for each in row]
        return json.dumps({"inputs": [tensor]}).encode(), b""
    octets = np.array(values, "<f4").tobytes()
    tensor["parameters"] = {"binary_data_size": len(octets)}
    parameters = {"binary_data_output": True}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode(), octets


def npy_of(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bytes:
    """As `numpy.save` writes it, with the header that numpy itself would take a while to make."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {array.shape!r}, }}"
    padded = text.ljust((len(text) + 10) // 64 * 64 + 64 - 11) + "\n"
    return (
        b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode() + array.tobytes()
    )
