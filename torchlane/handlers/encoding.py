"""Default encoders of answers and of the arguments of calls, and decoders of replies.

What the server gets is the native contract of `POST /models/NAME/predict` and `/batch-predict`:
there is no other form to parse.
"""

from __future__ import annotations

import base64
import io
import json
import secrets
import sys
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from torchlane.handlers.api import FIRST_ERROR, NO_CONTENT, CallFailed, Request, Response
from torchlane.handlers.content import Content
from torchlane.handlers.plain import json_of
from torchlane.handlers.tensors import NPZ

JSON, NPY, PNG = "application/json", "application/x-npy", "image/png"
PNG_MODES = frozenset(("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA"))  # of Pillow
BYTES = "application/octet-stream"
ARRAYS = f"{NPZ}, {NPY};q=0.9"  # of which only .npz has names
SENT_AS_THEY_CAME = frozenset(("PNG", "JPEG", "WEBP", "GIF"))  # Pillow's names of what models read
ENVELOPE = b'{"input":'
NUMBERS = frozenset("biuf")  # numpy's kinds of dtypes
NPY_BEGINNING, HEADER_AT = b"\x93NUMPY\x01\x00", 10
PNG_LEVEL = 1  # of compression: 6 takes several times as long for a tenth less


class NotAcceptable(Exception):
    """The answer is of a media type that the caller's Accept header excludes."""


class Encoded(NamedTuple):
    """A body and its media type.

    `is_enveloped`: whether it is `ENVELOPE`, a value and `}`; another handler gets only the value.
    """

    media_type: str
    body: bytes
    is_enveloped: bool = False


# Answers


def encode_answer(value: Any, accept: str) -> tuple[int, Encoded]:
    """Status and body of what `predict` returned.

    Args:
        value: see `Handler`.
        accept: the caller's Accept header.

    Raises:
        NotAcceptable: see its class; not for a `Response` with the status of an error.
        TypeError, ValueError: it cannot be sent; the message says why, and what to do.
    """
    if isinstance(value, Response):
        # Made again, which checks it: its attributes may have been changed.
        answer = Response(value.body, value.media_type, value.status)
        if answer.status < FIRST_ERROR:
            _check_accepted(answer.media_type, accept)
        return answer.status, Encoded(answer.media_type, answer.body)
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            "bytes have no media type; return torchlane.Response(data, media_type), "
            'such as "audio/wav"'
        )
    if _is_picture(value):
        encoded = Encoded(PNG, png_of(value))
    elif _is_array(value) and weight_of(NPY, accept) > weight_of(JSON, accept):
        encoded = Encoded(NPY, npy_of(value))
    else:
        encoded = Encoded(JSON, json_of(value))
    _check_accepted(encoded.media_type, accept)
    return 200, encoded


def _check_accepted(media_type: str, accept: str) -> None:
    essence = media_type.partition(";")[0].strip().lower()
    if weight_of(essence, accept) <= 0:
        raise NotAcceptable(f"the handler answers with {essence}, which Accept does not allow")


def weight_of(media_type: str, accept: str) -> float:
    """How much an Accept header wants a media type (RFC 9110, 12.5.1); 0: not at all."""
    if not accept or accept == "*/*":
        return 1.0
    kind = media_type.partition("/")[0]
    best, weight = -1, 0.0
    for element in accept.split(","):
        name, *parameters = (each.strip().lower() for each in element.split(";"))
        ranks = {media_type: 2, f"{kind}/*": 1, "*/*": 0, "*": 0}
        if ranks.get(name, -1) > best:
            best = ranks[name]
            weight = next((_number(p[2:]) for p in parameters if p.startswith("q=")), 1.0)
    return weight


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


# Arguments of calls


def encode_item(x: Any) -> Encoded:
    """The argument of a call as the body of a prediction.

    Raises:
        TypeError, ValueError: it cannot be sent.
    """
    if isinstance(x, Content):
        return Encoded(x.media_type, x.body)
    file = _file_of(x)
    if file is not None:
        return file
    if _is_array(x):
        return Encoded(NPY, npy_of(x))
    if isinstance(x, Mapping) and x and all(map(_is_array, x.values())):
        return Encoded(NPZ, npz_of(x))
    return Encoded(JSON, b"%b%b}" % (ENVELOPE, json_of(x)), is_enveloped=True)


def encode_items(xs: Sequence[Any]) -> Encoded:
    """The arguments of a call with several items as the body of a batch prediction.

    Raises:
        TypeError, ValueError: they cannot be sent.
    """
    xs = list(xs)
    if not xs:
        raise ValueError("call_many needs at least one item")
    if any(isinstance(x, Request) for x in xs):
        raise TypeError("call_many takes items, not requests: pass request.body or request.json()")
    files = [_file_of(x.body if isinstance(x, Content) else x) for x in xs]
    if all(files):
        return _form_of([each for each in files if each])
    if any(files):
        raise TypeError("call_many takes files (pictures, bytes) or other items, not both")
    if all(map(_is_array, xs)) and len({(x.shape, x.dtype) for x in xs}) == 1:
        return Encoded(NPY, npy_of(_numpy().stack(xs)))
    return Encoded(JSON, json_of({"inputs": xs}))


def _file_of(x: Any) -> Encoded | None:
    """A file, whose kind the server recognises by its first bytes; None if it is none."""
    if isinstance(x, bytes | bytearray | memoryview):
        return Encoded("", bytes(x))
    if not _is_picture(x):
        return None
    # Pillow drops the tiles once it has decoded them, and only then can pixels be changed.
    if getattr(x, "tile", None) and getattr(x, "format", None) in SENT_AS_THEY_CAME:
        file = getattr(x, "fp", None)
        if isinstance(file, io.BytesIO):
            return Encoded("", file.getvalue())
    return Encoded(PNG, png_of(x))


def _form_of(files: Sequence[Encoded]) -> Encoded:
    boundary = secrets.token_hex(16)
    pieces: list[bytes] = []
    for each in files:
        pieces.append(
            f"--{boundary}\r\n"
            'Content-Disposition: form-data; name="file"; filename="item"\r\n\r\n'.encode()
        )
        pieces += (each.body, b"\r\n")
    pieces.append(f"--{boundary}--\r\n".encode())
    return Encoded(f"multipart/form-data; boundary={boundary}", b"".join(pieces))


def accept_of(*, arrays: bool) -> str:
    """The Accept header of a call; another handler may answer with any media type."""
    return ARRAYS if arrays else f"{JSON}, */*;q=0.5"


# Replies


def decode_reply(model: str, encoded: Encoded, status: int = 200, output: str = "") -> Any:
    """The result of a call with one item: a prediction, arrays, or a `Response`.

    Args:
        model: that was called.
        encoded: the reply.
        status: of the reply.
        output: the name of the array, if the reply has a single one.

    Raises:
        ValueError: another handler says that its answer is JSON or arrays, and it is not.
    """
    essence = _essence(encoded)
    if essence == JSON and status != NO_CONTENT:
        try:
            answer = json.loads(encoded.body)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the answer of {model} is not JSON: {str(error)[:200]}") from error
        if isinstance(answer, dict) and answer.keys() >= {"model", "version", "prediction"}:
            return answer["prediction"]
        return answer
    if essence == NPZ:
        with _numpy().load(io.BytesIO(encoded.body), allow_pickle=False) as arrays:
            return dict(arrays)
    if essence == NPY:
        return {output or model: _array_of(encoded.body)}
    return Response(encoded.body, encoded.media_type or BYTES, status)


def decode_replies(model: str, encoded: Encoded, count: int, output: str = "") -> list[Any]:
    """The results of a call with several items, in order; see `decode_reply`.

    Raises:
        CallFailed: the model failed on an item.
    """
    results = decode_reply(model, encoded, output=output)
    if _essence(encoded) == JSON:
        predictions = [_item_of(model, *each) for each in enumerate(results["predictions"])]
    else:
        predictions = [
            {name: array[index] for name, array in results.items()} for index in range(count)
        ]
    if len(predictions) != count:
        raise RuntimeError(f"bug: {len(predictions)} results for {count} items")
    return list(predictions)


def _array_of(file: bytes) -> Any:
    """The array of a .npy file; few headers are different, and numpy takes 0.1 ms to read one."""
    if file[:8] != NPY_BEGINNING:  # of another handler
        return _numpy().load(io.BytesIO(file), allow_pickle=False)
    start = HEADER_AT + int.from_bytes(file[8:HEADER_AT], "little")
    shape, fortran, dtype = _npy_header(file[:start])
    if dtype.hasobject:
        raise ValueError("an array of Python objects cannot be read")
    array = _numpy().frombuffer(file, dtype, offset=start)
    return array.reshape(shape, order="F" if fortran else "C").copy(order="K")


@lru_cache(maxsize=256)
def _npy_header(head: bytes) -> tuple[tuple[int, ...], bool, Any]:
    """Shape, whether it is in Fortran's order, and dtype."""
    file = io.BytesIO(head)
    file.seek(8)
    header: tuple[tuple[int, ...], bool, Any] = _numpy().lib.format.read_array_header_1_0(file)
    return header


def _essence(encoded: Encoded) -> str:
    """The media type without its parameters."""
    return encoded.media_type.partition(";")[0].strip().lower()


def _item_of(model: str, index: int, item: Any) -> Any:
    """The result of an item.

    Raises:
        CallFailed: it has none.
    """
    keys = item.keys() if isinstance(item, dict) else ()
    if {"code", "error"} <= set(keys):
        raise CallFailed(model, 500, item["code"], f"item {index}: {item['error']}")
    if set(keys) == {"media_type", "base64"}:
        return Response(base64.b64decode(item["base64"]), item["media_type"])
    return item


# Kinds of objects


def _numpy() -> Any:
    import numpy  # noqa: PLC0415 # may be missing

    return numpy


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")  # if it is not imported, the value is not one of its own
    # Arrays of objects, such as bytes, have no file without pickling; JSON may have a form.
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind != "O"


def _is_picture(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def png_of(picture: Any) -> bytes:
    """A picture of Pillow as a PNG file.

    Raises:
        ValueError: PNG has no such colours.
    """
    if picture.mode not in PNG_MODES:
        raise ValueError(
            f'PNG has no pictures of mode {picture.mode}; convert it first: picture.convert("RGB")'
        )
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=PNG_LEVEL)
    return file.getvalue()


def npy_of(array: Any) -> bytes:
    """An array as a .npy file.

    Raises:
        ValueError: it has Python objects.
    """
    is_plain = type(array) is _numpy().ndarray  # no masked array
    if is_plain and array.dtype.kind in NUMBERS and array.flags.c_contiguous:
        numbers: bytes = array.tobytes()
        return _npy_head(array.dtype.str, array.shape) + numbers
    file = io.BytesIO()
    _numpy().lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


@lru_cache(maxsize=256)
def _npy_head(dtype: str, shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    _numpy().lib.format.write_array_header_1_0(file, described)
    return file.getvalue()


def npz_of(arrays: Mapping[str, Any]) -> bytes:
    """Arrays by name as a .npz file, not compressed.

    Raises:
        ValueError: one has Python objects.
    """
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # numpy.savez takes no array named "file"
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", npy_of(array))
    return file.getvalue()
