"""What a caller sent, decoded on demand."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

Model = TypeVar("Model")
FORM = "multipart/form-data"
MAX_PARTS = 1000  # of a form
MAX_DETAILS = 20  # of problems that pydantic finds
MAX_PART_HEADERS, MAX_PART_HEAD_BYTES = 8, 4096  # as in a form for a model
BLANKS_AND_LINE = re.compile(rb"[ \t]*\r\n")
NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # a token of RFC 9110, 5.6.2
HEADER = re.compile(rf"({NAME}):[ \t]*([^\r\n]*)")
PARAMETER = re.compile(rf'[ \t]*;[ \t]*({NAME})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^;"\s]*))')
ESCAPED = re.compile(r'\\(["\\])')


class InvalidInput(ValueError):
    """What the caller sent does not fit the handler; the answer is 422 `invalid_input`.

    A handler may raise it too: `raise torchlane.InvalidInput("the picture shows no face")`.

    Args:
        message: a sentence for the caller.
        details: for programs, such as `[{"path": "price", "error": "..."}]`.
    """

    def __init__(self, message: str, details: Sequence[Mapping[str, str | int | float]] = ()):
        super().__init__(message)
        self.details = tuple(details)


class Content:
    """A body with its media type.

    A form with one part is decoded like that part, so that `curl -F file=@street.jpg` and `curl
    --data-binary @street.jpg` are the same to a handler.

    Attributes:
        body: raw bytes.
        media_type: the Content-Type with its parameters; empty if there is none.
    """

    def __init__(self, body: bytes, media_type: str) -> None:
        self.body = body
        self.media_type = media_type

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, model: type[Model]) -> Model: ...

    def json(self, model: Any = None) -> Any:
        """The body as JSON.

        Args:
            model: a pydantic model, or another type that pydantic can validate, such as a
                dataclass; None: the plain objects.

        Raises:
            InvalidInput: it is not JSON, or does not fit the model.
        """
        data = self._data()
        if model is not None:
            return _validated(data, model)
        try:
            return json.loads(data, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"the body is not JSON: {str(error)[:200]}") from error

    def text(self) -> str:
        """The body as text, in the charset of its media type; the default is UTF-8.

        Raises:
            InvalidInput: it is not.
        """
        content = self._content()
        charset = _parameters(content.media_type).get("charset") or "utf-8"
        try:
            return content.body.decode(charset)
        except (LookupError, ValueError) as error:  # no such charset, or not in it
            raise InvalidInput(f"the body is not text in {charset[:40]}") from error

    def image(self) -> Image:
        """The body as a picture of Pillow, decoded when its pixels are first used.

        A picture that is passed to `Handler.call` before that is sent as it came.

        Raises:
            InvalidInput: it is no picture that Pillow reads; also when its pixels are decoded.
            ImportError: the handler's interpreter has no Pillow.
        """
        from PIL import Image  # noqa: PLC0415 # may be missing

        try:
            picture = Image.open(io.BytesIO(self._data()))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise InvalidInput(f"the body is no picture: {_without_object(error)}") from error
        decode = picture.load

        def load() -> Any:
            try:
                return decode()
            except (OSError, SyntaxError, ValueError) as error:
                raise InvalidInput(f"the picture is damaged: {str(error)[:200]}") from error

        picture.load = load  # type: ignore[method-assign]
        return picture

    def array(self) -> np.ndarray[Any, Any]:
        """The body as a numpy array, from a .npy file.

        Raises:
            InvalidInput: it is no such file, or has Python objects.
            ImportError: the handler's interpreter has no numpy.
        """
        import numpy as np  # noqa: PLC0415 # may be missing

        try:
            array = np.lib.format.read_array(io.BytesIO(self._data()), allow_pickle=False)
        except (ValueError, EOFError, MemoryError, OSError) as error:
            raise InvalidInput(f"the body is no .npy file: {str(error)[:200]}") from error
        return cast("np.ndarray[Any, Any]", array)

    @cached_property
    def form(self) -> Mapping[str, Sequence[Part]]:
        """The parts of a form (`multipart/form-data`) by name, in order.

        Raises:
            InvalidInput: the body is no form.
        """
        parts: dict[str, list[Part]] = {}
        for part in _parts(self.body, self.media_type):
            parts.setdefault(part.name, []).append(part)
        return parts

    def _content(self) -> Content:
        if not _is_form(self.media_type):
            return self
        parts = [part for each in self.form.values() for part in each]
        if len(parts) != 1:
            raise InvalidInput(f"the form has {len(parts)} parts; this handler takes one")
        return parts[0]

    def _data(self) -> bytes:
        return self._content().body


class Part(Content):
    """A part of a form.

    Attributes:
        name: of the field.
        filename: that the caller gave it; empty if none. Not a path to write to.
    """

    def __init__(self, name: str, filename: str, media_type: str, body: bytes) -> None:
        super().__init__(body, media_type)
        self.name = name
        self.filename = filename


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _validated(data: bytes, model: Any) -> Any:
    from pydantic import ValidationError  # noqa: PLC0415 # may be missing

    try:
        return _adapter(model).validate_json(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        details = [
            {"path": ".".join(map(str, each["loc"])), "error": each["msg"]}
            for each in problems[:20]
        ]
        path, message = details[0]["path"], details[0]["error"]
        raise InvalidInput(f"{path}: {message}" if path else message, details) from error


@lru_cache
def _adapter(model: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 # may be missing

    return TypeAdapter(model)


def _without_object(error: BaseException) -> str:
    return str(error).partition(" <_io.BytesIO")[0][:200]  # "cannot identify image file <...>"


def _is_form(media_type: str) -> bool:
    return media_type[: len(FORM)].lower() == FORM


def _parameters(header: str) -> dict[str, str]:
    """The parameters of a header, with names in lower case; without extended ones (`name*`).

    RFC 7578 forbids those in a form.

    Raises:
        InvalidInput: they are malformed, or one is there twice.
    """
    parameters: dict[str, str] = {}
    at, end = len(header.partition(";")[0]), len(header.rstrip(" \t;"))
    while at < end:
        match = PARAMETER.match(header, at)
        if match is None:
            raise InvalidInput(f"the parameters of {header[:80]!r} are malformed")
        name, quoted, token = match.groups()
        if name.lower() in parameters:
            raise InvalidInput(f"{header[:80]!r} has the parameter {name[:40]} twice")
        if "*" not in name:
            parameters[name.lower()] = token if quoted is None else ESCAPED.sub(r"\1", quoted)
        at = match.end()
    return parameters


def _parts(body: bytes, media_type: str) -> Iterator[Part]:
    """The parts of a form (RFC 7578 and 2046), without copying a line of it."""
    boundary = _parameters(media_type).get("boundary", "") if _is_form(media_type) else ""
    if not boundary:
        raise InvalidInput(f"the body is no form ({FORM} with a boundary)")
    delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
    _, *pieces = (b"\r\n" + body).split(delimiter, MAX_PARTS + 1)
    if not any(piece.startswith(b"--") for piece in pieces[-1:]):
        raise InvalidInput(f"the form does not end, or has more than {MAX_PARTS} parts")
    for piece in pieces[:-1]:
        line = BLANKS_AND_LINE.match(piece)
        head_end = piece.find(b"\r\n\r\n", line.end() - 2 if line else 0)
        if line is None or not 0 <= head_end <= MAX_PART_HEAD_BYTES:
            raise InvalidInput("a part of the form has no headers")
        yield Part(*_named(piece[line.end() : head_end + 2]), piece[head_end + 4 :])


def _named(head: bytes) -> tuple[str, str, str]:
    """Name, filename and media type by the headers of a part."""
    headers: dict[str, str] = {}
    for line in head.decode("utf-8", "replace").split("\r\n")[:-1]:
        match = HEADER.fullmatch(line)
        if match is None or match[1].lower() in headers or len(headers) == MAX_PART_HEADERS:
            raise InvalidInput(
                f"a part of the form has the header {line[:80]!r}, which is malformed, there twice "
                f"or one of more than {MAX_PART_HEADERS}"
            )
        headers[match[1].lower()] = match[2].rstrip(" \t")
    parameters = _parameters(headers.get("content-disposition", ""))
    if "name" not in parameters:
        raise InvalidInput("a part of the form has no name")
    filename = parameters.get("filename", "")
    return parameters["name"], filename, headers.get("content-type", "")
