"""Python objects as JSON: what the standard library can, dataclasses, pydantic, numpy."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torchlane.handlers.elements import as_texts

MAX_SHOWN = 80  # characters of a place, in an error
TOO_DEEP = "the object is nested too deeply for JSON, or contains itself"
HINT = (
    "use what JSON has, dataclasses, pydantic models or numpy arrays, or a Response for other data"
)


def plain(value: Any) -> Any:
    """An object that the standard library cannot write as JSON, one step plainer.

    Raises:
        TypeError: there is no such form.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    numpy = sys.modules.get("numpy")  # if it is not imported, the value is not one of its own
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return as_texts(value) if value.dtype.kind == "O" else value.tolist()
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"JSON has no form for an object of type {type(value).__name__}; {HINT}")


_ENCODER = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=plain
)


def json_of(value: Any) -> bytes:
    """An object as JSON, in UTF-8.

    Raises:
        TypeError: a part of it has no form in JSON.
        ValueError: a number in it is NaN or infinite, or a text has half a character.
    """
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text has half of a surrogate pair, which UTF-8 cannot have") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    except ValueError as error:
        try:
            place = next(_not_finite(value, ""), None)
        except RecursionError:
            raise ValueError(TOO_DEEP) from error
        if place is None:
            raise
        where = f" at {place[:MAX_SHOWN]}" if place else ""
        raise ValueError(f"JSON has no NaN and no infinity{where}; replace it") from error


def _not_finite(value: Any, place: str) -> Iterator[str]:
    """The places of such numbers, as in `.scores[3]`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield place
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _not_finite(each, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _not_finite(each, f"{place}[{index}]")
    elif value is not None and not isinstance(value, str | int):
        yield from _not_finite(plain(value), place)
