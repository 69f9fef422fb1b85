"""Conversion of outcomes to the answer of an infer request: JSON, then the bytes of tensors."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from app.api.answers import Headers, Pieces, in_parts
from app.api.json_pieces import Flat, Lazy, LongText, json_pieces
from app.api.memo import Written
from app.api.oip.requests import HEADER_LENGTH, InferRequest, Wanted
from app.api.outcomes import JSON_HEADERS, check_classes, dumped, failure_of
from app.codecs.answers import highest, octets_of
from app.codecs.base import OCTET_STREAM
from app.codecs.datatypes import BYTES, DATATYPES
from app.codecs.declared import Unpacked
from app.codecs.elements import PART_BYTES, elements_of, join_bytes, text_of
from app.codecs.values import short
from app.errors import InvalidInput, ItemFailed, NotAcceptable
from app.registry.loaded_models import LoadedModel
from app.types import Array, Arrays, ModelId, Outcome
from models.tensors import TensorSpec


class Output(NamedTuple):
    """An output of an answer.

    Attributes:
        rows: the items' arrays; of BYTES the octets, see `app.codecs.elements`.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    binary: bool
    rows: list[Array]


def check_outputs(outputs: Sequence[TensorSpec], request: InferRequest) -> None:
    """Reject outputs that the model cannot return, before anything is computed.

    Args:
        outputs: of the model, or of the handler.
        request: with its inputs.

    Raises:
        InvalidInput: with the outputs that it has.
        PayloadTooLarge: if all items have too many classes in total, each written as a string.
    """
    if request.outputs is None:
        return
    names = [spec.name for spec in outputs]
    for wanted in request.outputs:
        if wanted.name not in names:
            raise InvalidInput(f"there is no output {short(wanted.name)}; the model has {names}")
        at = names.index(wanted.name)
        rank = len(outputs[at].shape)
        if not wanted.classes:
            continue
        if rank != 2:
            raise InvalidInput(
                f"output {wanted.name!r} has {rank} axes; classification needs scores [n, classes]"
            )
        count, size = request.inputs[0].shape[0], outputs[at].shape[1]
        classes = count * (min(wanted.classes, size) if size > 0 else wanted.classes)
        check_classes(classes, count, "request fewer, or the tensor")


def outputs_in_steps(
    model: LoadedModel, request: InferRequest, outcomes: Sequence[Outcome]
) -> Generator[bytes, None, list[Output]]:
    """The requested outputs, made in quick steps, each of which yields nothing, as bytes.

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
            named = labels if spec is specs[0] else None
            classes = yield from _classes(wanted, items, named)
            found.append(classes)
        else:
            found.append(_tensor(spec, items, binary=wanted.binary))
    return found


def outputs_of(
    specs: Sequence[TensorSpec], request: InferRequest, tensors: Mapping[str, Unpacked]
) -> list[Output]:
    """The requested outputs of a handler.

    Args:
        specs: that it declares.
        request: asks for no classification.
        tensors: by name, each with all items.

    Raises:
        NotAcceptable: if bytes that are not UTF-8 are to be JSON.
    """
    binary = {each.name: each.binary for each in request.outputs or ()}
    if request.outputs is None:
        binary = {spec.name: request.binary for spec in specs}
    datatypes = {spec.name: DATATYPES[spec.dtype] for spec in specs}
    outputs = [
        Output(name, datatypes[name], tensors[name].shape, is_binary, [tensors[name].array])
        for name, is_binary in binary.items()
    ]
    for output in outputs:
        if output.datatype == BYTES and not output.binary:
            _check_texts(output)
    return outputs


def _check_texts(output: Output) -> None:
    for number, element in enumerate(_elements(output)):
        try:
            for _ in text_of(element):
                pass
        except UnicodeDecodeError as error:
            raise NotAcceptable(
                f"element {number} of the output {output.name!r} is not UTF-8, which JSON needs; "
                "request it as binary data, with the parameter binary_data of the output"
            ) from error


def _elements(output: Output) -> Iterator[memoryview]:
    return elements_of(f"output {output.name!r}", output.rows[0].data)


def _tensor(spec: TensorSpec, items: Sequence[Arrays], *, binary: bool) -> Output:
    name = spec.name
    rows = [item[name] for item in items]
    shape = rows[0].shape
    if len(rows) > 1 and any(row.shape != shape for row in rows):
        raise InvalidInput(
            f"the items' outputs {name!r} differ in shape, so one tensor cannot hold them all; "
            "send items with the same shape, or each in its own request"
        )
    return Output(name, DATATYPES[spec.dtype], (len(rows), *shape), binary, rows)


def _classes(
    wanted: Wanted, items: Sequence[Arrays], labels: Sequence[str] | None
) -> Generator[bytes, None, Output]:
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
            yield b""
        found += lines
    octets = np.frombuffer(join_bytes(found), np.uint8)
    return Output(wanted.name, BYTES, (len(items), most), wanted.binary, [octets])


def write_answer(model: ModelId, request: InferRequest, outputs: Sequence[Output]) -> Written:
    """The whole body, and its headers."""
    head = dumped(_document(model, request, outputs, large=False))
    octets = [part for output in outputs if output.binary for part in output_octets(output)]
    return _headers(outputs, len(head)), b"".join((head, *octets)) if octets else head


def write_large_answer(model: ModelId, request: InferRequest, outputs: Sequence[Output]) -> Pieces:
    """The same in pieces."""
    size = 0
    for piece in json_pieces(_document(model, request, outputs, large=True)):
        size += len(piece)
        yield piece
    for output in outputs:
        if output.binary:
            for octets in output_octets(output):
                yield from in_parts(octets)
    return _headers(outputs, size)


def _headers(outputs: Sequence[Output], json_bytes: int) -> Headers:
    if not any(output.binary for output in outputs):
        return JSON_HEADERS
    return (
        (b"content-type", OCTET_STREAM.encode()),
        (HEADER_LENGTH.lower().encode(), b"%d" % json_bytes),
    )


def _document(
    model: ModelId, request: InferRequest, outputs: Sequence[Output], *, large: bool
) -> dict[str, Any]:
    """The JSON before the bytes of tensors; `large` for `json_pieces`."""
    shown: list[dict[str, Any]] = []
    for output in outputs:
        one: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": output.shape,
        }
        if output.binary:
            one["parameters"] = {"binary_data_size": octets_bytes(output)}
        elif output.datatype == BYTES:
            texts = map(_text, _elements(output))
            one["data"] = Lazy(texts) if large else list(texts)
        else:
            one["data"] = Flat(output.rows) if large else _flat(output.rows)
        shown.append(one)
    return {
        **({"id": request.id} if request.id else {}),
        "model_name": model.name,
        "model_version": str(model.version),
        "outputs": shown,
    }


def _text(element: memoryview) -> str | LongText:
    return LongText(element) if len(element) > PART_BYTES else str(element, "utf-8")


def _flat(rows: list[Array]) -> Array:
    """All rows as one flat, C-contiguous array."""
    return rows[0].reshape(-1) if len(rows) == 1 else np.stack(rows).reshape(-1)


def octets_bytes(output: Output) -> int:
    """The length of the values in the protocol's binary form."""
    return len(output.rows) * output.rows[0].nbytes


def output_octets(output: Output) -> Iterator[memoryview]:
    """The values in the protocol's binary form, in parts: little-endian, row-major."""
    return octets_of(output.rows)
