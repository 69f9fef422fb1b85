"""Tensors of handlers that declare them: what callers send, and what a handler's process answers.

The handler's own reader gets what the server packs, and the server what the handler packs.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from app.api.oip.answers import outputs_of, write_answer, write_large_answer
from app.api.oip.grpc.messages import InferMessage
from app.api.oip.grpc.protos import inference_pb2 as pb
from app.api.oip.infer import parse_body
from app.api.oip.requests import HEADER_LENGTH, InferRequest, Wanted
from app.api.oip.tensors import arrays_of
from app.codecs.base import Budget
from app.codecs.declared import DeclaredTensors
from app.codecs.elements import join_bytes
from app.errors import HandlerOutputs, NotAcceptable, TorchlaneError
from app.types import Array, ModelId
from models.handlers import declared_tensors
from tests.fuzz import grpc_infer, infer, raw_bodies
from tests.fuzz.oracle import MAX_ITEMS, check_refusal
from tests.fuzz.raw_bodies import npy
from tests.fuzz.target import Finding, Target
from torchlane.handlers.content import Content
from torchlane.handlers.declarations import read_tensors
from torchlane.handlers.encoding import npz_of
from torchlane.handlers.tensors import NPZ, arrays_in
from torchlane.handlers.tensors import outputs_of as packed

REST, GRPC, ANSWER, DEFLATED = range(4)  # by the first byte
ALL = 0xFFFF  # as the length of the JSON: there is no header
MAX_BYTES = 1 << 16
TEXTS = {"text": "bytes[-1,2]", "n": "int64[-1] in -2..128"}
TENSORS = read_tensors(TEXTS, "inputs")
SIGNATURE = DeclaredTensors(declared_tensors(TENSORS), declared_tensors(TENSORS))
MODEL = ModelId("m", 1)


def case(data: bytes) -> None:
    """The first byte says what the rest is: see the constants."""
    if not data:
        return
    kind, body = data[0] % 4, data[1:]
    if kind in (REST, GRPC):
        asked(kind, body)
    else:
        answered(archive(body, zipfile.ZIP_DEFLATED if kind == DEFLATED else zipfile.ZIP_STORED))


def asked(kind: int, body: bytes) -> None:
    """Read a request, and let the handler's process read what it gets of it."""
    budget = Budget()
    try:
        request = _request(kind, body, budget)
        arrays = arrays_of(SIGNATURE, request.inputs, MAX_ITEMS)
    except TorchlaneError as error:
        check_refusal(error)
        return
    found = arrays_in(Content(SIGNATURE.packed(arrays), NPZ), TENSORS)
    if not 1 <= len(found["n"]) <= MAX_ITEMS or found["n"].tobytes() != arrays["n"].tobytes():
        raise Finding(f"{arrays} became {found}")
    if found["text"].shape != request.inputs[_at(request)].shape:
        raise Finding(f"the shape of {request} became {found['text'].shape}")
    again = packed(found, TENSORS)
    if again["text"].tobytes() != arrays["text"].tobytes():
        raise Finding(f"{arrays} became {again}")
    answered(npz_of(again))


def _request(kind: int, body: bytes, budget: Budget) -> InferRequest:
    if kind == GRPC:
        elements = SIGNATURE.item_elements * MAX_ITEMS
        return InferMessage(body, MAX_ITEMS).request(budget, MAX_BYTES, elements)
    size, body = int.from_bytes(body[:2]), body[2:]
    return parse_body(SIGNATURE, body, None if size == ALL else size, MAX_ITEMS, budget)


def archive(data: bytes, how: int) -> bytes:
    """An .npz file of two .npy files, the length of the first one before them."""
    made, at = io.BytesIO(), 2 + int.from_bytes(data[:2])
    with zipfile.ZipFile(made, "w", how) as file:
        file.writestr("text.npy", data[2:at])
        file.writestr("n.npy", data[at:])
    return made.getvalue()


def _at(request: InferRequest) -> int:
    return [each.name for each in request.inputs].index("text")


def answered(body: bytes) -> None:
    """Read an answer, and write what it has."""
    try:
        tensors = SIGNATURE.unpacked(body)
    except HandlerOutputs:
        return
    for binary in (True, False):
        request = InferRequest((), tuple(Wanted(name, binary) for name in tensors))
        try:
            outputs = outputs_of(SIGNATURE.outputs, request, tensors)
        except NotAcceptable:
            if binary:
                raise
            continue
        headers, whole = write_answer(MODEL, request, outputs)
        if b"".join(write_large_answer(MODEL, request, outputs)) != whole:
            raise Finding(f"{outputs} is written differently in pieces")
        sizes = dict(headers)
        head = whole[: int(sizes.get(HEADER_LENGTH.lower().encode(), len(whole)))]
        for shown, output in zip(orjson.loads(head)["outputs"], outputs, strict=True):
            if not binary and len(shown["data"]) != np.prod(output.shape, dtype=int):
                raise Finding(f"{shown} for the shape {output.shape}")


def seeds() -> Iterator[bytes]:
    """Requests of one item and of two, in each form, and answers."""
    for texts in (["a", "é"], ["", "b", '"', "d"]):
        count = len(texts) // 2
        n = np.arange(count)
        elements = [each.encode() for each in texts]
        for text in (texts, [texts[at : at + 2] for at in range(0, len(texts), 2)]):
            yield bytes((REST, 0xFF, 0xFF)) + dumped(count, {"data": text}, {"data": n})
        parts = join_bytes(elements), n.tobytes()
        sized = [{"parameters": {"binary_data_size": len(part)}} for part in parts]
        head = dumped(count, *sized)
        yield bytes((REST,)) + len(head).to_bytes(2) + head + b"".join(parts)
        for is_raw in (True, False):
            yield bytes((GRPC,)) + message(elements, n, is_raw=is_raw)
        octets = np.frombuffer(parts[0], np.uint8)
        for kind in (ANSWER, DEFLATED):
            first = npy(octets)
            yield bytes((kind,)) + len(first).to_bytes(2) + first + npy(n)


def dumped(count: int, text: dict[str, Any], n: dict[str, Any]) -> bytes:
    """The JSON of a request."""
    inputs = [
        {"name": "text", "datatype": "BYTES", "shape": [count, 2], **text},
        {"name": "n", "datatype": "INT64", "shape": [count], **n},
    ]
    return orjson.dumps({"inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY)


def message(elements: Sequence[bytes], n: Array, *, is_raw: bool) -> bytes:
    """The message of a request."""
    made = pb.ModelInferRequest(model_name="m")
    text = made.inputs.add(name="text", datatype="BYTES", shape=[len(n), 2])
    numbers = made.inputs.add(name="n", datatype="INT64", shape=[len(n)])
    if is_raw:
        made.raw_input_contents.extend([join_bytes(elements), n.tobytes()])
    else:
        text.contents.bytes_contents.extend(elements)
        numbers.contents.int64_contents.extend(n)
    return made.SerializeToString()


WORDS = (*infer.WORDS, *grpc_infer.WORDS, *raw_bodies.WORDS, b"text", b"|u1", b"\xc3\xa9")
TARGET = Target(case, seeds, WORDS, max_bytes=2048)
