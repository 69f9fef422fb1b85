"""Infer requests over gRPC: protobuf, whose fields are counted before it makes objects."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from app.api.oip.grpc.messages import InferMessage
from app.api.oip.grpc.protos import inference_pb2 as pb
from app.api.oip.tensors import items_of
from app.codecs.base import Budget
from app.codecs.datatypes import DATATYPES
from app.errors import TorchlaneError
from tests.fuzz.codecs import CODECS
from tests.fuzz.oracle import MAX_ITEMS, check_items, check_refusal
from tests.fuzz.target import Finding, Target

MAX_BYTES = 1 << 16


def case(data: bytes) -> None:
    """The first byte names the codec; the rest is the message."""
    if not data:
        return
    codec, body = CODECS[data[0] % len(CODECS)], data[1:]
    budget = Budget()
    try:
        message = InferMessage(body, MAX_ITEMS)
        check_names(message, body)
        request = message.request(budget, MAX_BYTES)
        items = items_of(codec, request.inputs, MAX_ITEMS, budget)
    except TorchlaneError as error:
        check_refusal(error)
        return
    if request.timeout_s <= 0 or math.isnan(request.timeout_s):
        raise Finding(f"a timeout of {request.timeout_s} s")
    check_items(codec.manifest.inputs, items, many=True)


def check_names(message: InferMessage, body: bytes) -> None:
    """What protobuf's own parser reads, ours reads in the same way."""
    try:
        known = pb.ModelInferRequest.FromString(body)
    except DecodeError:
        return
    if (message.name, message.version) != (known.model_name, known.model_version):
        raise Finding(f"{message.name!r} {message.version!r}, protobuf reads {known}")


def seeds() -> Iterator[bytes]:
    """One item and two: as raw bytes, and as typed contents."""
    for at, codec in enumerate(CODECS):
        for count in (1, 2):
            raw = pb.ModelInferRequest(model_name="m", model_version="1", id="a")
            raw.outputs.add(name="y").parameters["classification"].int64_param = 2
            raw.parameters["timeout"].int64_param = 10
            typed = pb.ModelInferRequest(model_name="m")
            for spec in codec.manifest.inputs:
                shape = [2 if size == -1 else size for size in spec.item_shape]
                values = np.ones((count, *shape), spec.dtype)
                for message in (raw, typed):
                    datatype = DATATYPES[spec.dtype]
                    message.inputs.add(name=spec.name, datatype=datatype, shape=values.shape)
                raw.raw_input_contents.append(values.tobytes())
                contents = typed.inputs[-1].contents
                kinds: dict[str, Any] = {"f": contents.fp32_contents, "b": contents.bool_contents}
                kinds.get(values.dtype.kind, contents.int_contents).extend(values.ravel())
            for message in (raw, typed):
                yield bytes((at,)) + message.SerializeToString()


WORDS = (
    *(each.encode() for each in DATATYPES.values()),
    *(b"\x2a\x02", b"\x3a\x08", b"\x32\x04", b"\x22\x05", b"\x1a\x02", b"\x18\x01", b"\x42\x01"),
    *(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x10", b"\x0b", b"\x0c"),
    *(b"BYTES", b"BF16", b"timeout", b"classification", b"shared_memory_region"),
)
TARGET = Target(case, seeds, WORDS, max_bytes=2048)
