"""Conversion of outcomes to the answer of an infer request: JSON, then the bytes of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from app.api.memo import Written
from app.api.oip.datatypes import BYTES, DATATYPES
from app.api.oip.requests import HEADER_LENGTH, InferRequest, Wanted
from app.api.oip.tensors import LITTLE, join_bytes
from app.api.outcomes import JSON_HEADERS, check_classes, dumped, failure_of
from app.codecs.answers import highest
from app.codecs.base import OCTET_STREAM
from app.codecs.values import short
from app.errors import InvalidInput, ItemFailed
from app.registry.loaded_models import LoadedModel
from app.types import Array, Arrays, Outcome
from models.tensors import TensorSpec


class Output(NamedTuple):
    """An output of an answer; `values` are an array, or the elements of BYTES."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Array | list[bytes]
    binary: bool


def check_outputs(model: LoadedModel, request: InferRequest) -> None:
    """Reject outputs that the model cannot return, before anything is computed.

    Raises:
        InvalidInput: with the outputs that it has.
        PayloadTooLarge: if all items have too many classes in total, each written as a string.
    """
    if request.outputs is None:
        return
    names = [spec.name for spec in model.manifest.outputs]
    for wanted in request.outputs:
        if wanted.name not in names:
            raise InvalidInput(f"there is no output {short(wanted.name)}; the model has {names}")
        at = names.index(wanted.name)
        rank = len(model.manifest.outputs[at].shape)
        if not wanted.classes:
            continue
        if rank != 2:
            raise InvalidInput(
                f"output {wanted.name!r} has {rank} axes; classification needs scores [n, classes]"
            )
        count, size = request.inputs[0].shape[0], model.manifest.outputs[at].shape[1]
        classes = count * (min(wanted.classes, size) if size > 0 else wanted.classes)
        check_classes(classes, count, "request fewer, or the tensor")


def outputs_of(
    model: LoadedModel, request: InferRequest, outcomes: Sequence[Outcome]
) -> list[Output]:
    """The requested outputs, each with all items.

    Raises:
        ItemFailed: if an item failed, which the protocol cannot express.
        InvalidInput: if the items differ in shape, so that no tensor can hold them all.
    """
    if any(isinstance(each, ItemFailed) for each in outcomes):
        raise failure_of(outcomes)
    items = cast(Sequence[Arrays], outcomes)
    specs = model.manifest.outputs
    if request.outputs is None:
        return [_tensor(spec, items, binary=request.binary) for spec in specs]
    labels = model.manifest.codec.score_labels
    found = []
    for wanted in request.outputs:
        spec = next(each for each in specs if each.name == wanted.name)
        if wanted.classes:
            found.append(_classes(wanted, items, labels if spec is specs[0] else None))
        else:
            found.append(_tensor(spec, items, binary=wanted.binary))
    return found


def _tensor(spec: TensorSpec, items: Sequence[Arrays], *, binary: bool) -> Output:
    name = spec.name
    if len(items) == 1:
        stacked = items[0][name][np.newaxis]
    else:
        rows = [item[name] for item in items]
        if len({row.shape for row in rows}) > 1:
            raise InvalidInput(
                f"the items' outputs {name!r} differ in shape, so one tensor cannot hold them all; "
                "send items with the same shape, or each in its own request"
            )
        stacked = np.stack(rows)
    return Output(name, DATATYPES[spec.dtype], stacked.shape, stacked, binary)


def _classes(wanted: Wanted, items: Sequence[Arrays], labels: Sequence[str] | None) -> Output:
    """The highest scores of each item as `score:index:label`, Triton's classification."""
    found: list[bytes] = []
    most = min(wanted.classes, *(len(item[wanted.name]) for item in items))
    written: dict[int, list[bytes]] = {}  # equal items have one outcome
    for item in items:
        lines = written.get(id(item))
        if lines is None:
            scores = item[wanted.name]
            lines = written[id(item)] = []
            for index in highest(scores, most).tolist():
                text = f"{float(scores[index]):f}:{index}"
                lines.append((text if labels is None else f"{text}:{labels[index]}").encode())
        found += lines
    return Output(wanted.name, BYTES, (len(items), most), found, wanted.binary)


def write_answer(model: LoadedModel, request: InferRequest, outputs: Sequence[Output]) -> Written:
    """The whole body, and its headers."""
    octets: list[memoryview] = []
    shown: list[dict[str, Any]] = []
    for output in outputs:
        one: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": output.shape,
        }
        if output.binary:
            octets.append(octets_of(output))
            one["parameters"] = {"binary_data_size": octets[-1].nbytes}
        else:
            one["data"] = _json_data(output.values)
        shown.append(one)
    document: dict[str, Any] = {
        **({"id": request.id} if request.id else {}),
        "model_name": model.id.name,
        "model_version": str(model.id.version),
        "outputs": shown,
    }
    head = dumped(document)
    if not octets:
        return JSON_HEADERS, head
    headers = (
        (b"content-type", OCTET_STREAM.encode()),
        (HEADER_LENGTH.lower().encode(), b"%d" % len(head)),
    )
    return headers, b"".join((head, *octets))


def octets_of(output: Output) -> memoryview:
    """The values in the protocol's binary form: contiguous, little-endian, row-major."""
    values = output.values
    if isinstance(values, list):
        return memoryview(join_bytes(values))
    if not LITTLE:
        values = values.astype(values.dtype.newbyteorder("<"))
    return np.ascontiguousarray(values).data


def _json_data(values: Array | list[bytes]) -> object:
    if isinstance(values, list):
        return [each.decode() for each in values]
    return values.reshape(math.prod(values.shape))  # flat and C-contiguous
