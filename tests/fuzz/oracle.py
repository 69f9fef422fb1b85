"""What must hold of all that is read: items as the manifest says, or a refusal fit to send."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from app.api.errors import FORM, error_answer
from app.api.native.dialect import NATIVE
from app.api.payloads import read_items
from app.codecs.base import Codec
from app.engine.keys import KeyMaker
from app.errors import CallerError, TorchlaneError
from app.types import Item, Signature, signature_of
from models.bounds import mismatch, out_of_range, shared_axes
from models.tensors import TensorSpec
from tests.fuzz.target import Finding

MAX_ITEMS = 4
MAX_REFUSAL_BYTES = 16_384  # an .npy header of 4 KB may be shown, escaped
KEYS = KeyMaker("fuzz")

# The same for two bodies exactly where they mean the same.
Outcome = tuple[object, ...]


def outcome(codec: Codec, content_type: str, body: bytes, *, many: bool) -> Outcome:
    """Read a body, and judge what comes of it."""
    try:
        items = read_items(codec, content_type, body, many=many, max_items=MAX_ITEMS)
    except TorchlaneError as error:
        check_refusal(error)
        return type(error), str(error), error.details
    check_items(codec.manifest.inputs, items, many=many)
    return tuple((item.signature, KEYS.key(item)) for item in items)


def check_refusal(error: TorchlaneError) -> None:
    """The caller's fault, and an answer can be made of it."""
    if not isinstance(error, CallerError):
        raise Finding(f"{type(error).__name__} is nothing that a body can cause") from error
    status, _, content = error_answer({FORM: NATIVE.errors}, error)
    if not 400 <= status < 500 or len(content) > MAX_REFUSAL_BYTES:
        raise Finding(f"status {status} of {len(content)} bytes") from error
    if orjson.loads(content)["code"] != error.code:
        raise Finding(f"its code is not {error.code}") from error


def check_items(inputs: Sequence[TensorSpec], items: Sequence[Item], *, many: bool) -> None:
    """As many as may be, and each as the manifest promises it to the engine."""
    if not 1 <= len(items) <= (MAX_ITEMS if many else 1):
        raise Finding(f"{len(items)} items")
    for item in items:
        if item.signature != _signature(inputs, item):
            raise Finding(f"{item.signature} is not the signature of its arrays")
        if list(item.arrays) != [spec.name for spec in inputs]:
            raise Finding(f"inputs {list(item.arrays)}")
        for spec in inputs:
            array = item.arrays[spec.name]
            told = f"{array.dtype.str}{list(array.shape)} for {spec}"
            if array.dtype != np.dtype(spec.dtype) or not array.dtype.isnative:
                raise Finding(f"dtype: {told}")
            if not spec.takes(array.shape) or not array.flags.c_contiguous:
                raise Finding(f"shape: {told}")
            if out_of_range(spec, array) is not None:
                raise Finding(f"out of range: {told}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise Finding(f"not finite: {told}")
            if array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
                raise Finding(f"no bool: {told}")
        shapes = {name: array.shape for name, array in item.arrays.items()}
        if (differ := mismatch(shared_axes(inputs), shapes)) is not None:
            raise Finding(str(differ))


def _signature(inputs: Sequence[TensorSpec], item: Item) -> Signature:
    """What the engine expects: -1 for axes that may be padded."""
    padded = {each.name for spec in inputs for each in spec.dimensions if each.mask is not None}
    if not padded:
        return signature_of(item.arrays)
    shapes = [
        tuple(
            -1 if axis.name in padded else size
            for axis, size in zip(spec.axes, item.arrays[spec.name].shape, strict=True)
        )
        for spec in inputs
    ]
    return tuple(
        (s.name, np.dtype(s.dtype).str, made) for s, made in zip(inputs, shapes, strict=True)
    )
