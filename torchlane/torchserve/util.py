"""What handlers import from `ts.utils.util` and `ts.handler_utils`."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
CLEANUP_REGEX = re.compile("<.*?>|&([a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")  # tags, entities


class PredictionException(Exception):
    """Ends the requests of a batch with a message and a status."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code


def list_classes_from_module(
    module: ModuleType, parent_class: type | None = None
) -> list[type[Any]]:
    """The classes that a module defines, by name; with a parent, only its subclasses."""
    return [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__
        and (parent_class is None or issubclass(kind, parent_class))
    ]


def load_label_mapping(mapping_file_path: str) -> dict[str, str] | None:
    """The labels in index_to_name.json by index; None if there is no such file.

    Raises:
        ValueError: it is not an object index -> label.
    """
    file = Path(mapping_file_path)
    if not file.is_file():
        return None
    labels: Any = json.loads(file.read_text())
    if isinstance(labels, dict) and isinstance(labels.get("object_type_names"), list):
        labels = {str(index): name for index, name in enumerate(labels["object_type_names"])}
    if not isinstance(labels, dict):
        raise ValueError(f"{file.name} must be an object index -> label")
    return {
        index: str(name[-1] if isinstance(name, list) else name) for index, name in labels.items()
    }


def map_class_to_label(
    probs: Sequence[Sequence[Any]],
    mapping: Mapping[str, str] | None = None,
    lbl_classes: Sequence[Sequence[Any]] | None = None,
) -> list[dict[str, Any]]:
    """Values by label.

    Args:
        probs: for each item its values.
        mapping: labels by index; None: the index is the label.
        lbl_classes: for each item the index of each value; None: they are in order.
    """
    indices = lbl_classes if lbl_classes is not None else itertools.repeat(range(len(probs[0])))
    return [
        {
            (str(index) if mapping is None else mapping[str(index)]): value
            for index, value in zip(of_item, values, strict=False)
        }
        for of_item, values in zip(indices, probs, strict=False)
    ]


def timed(func: Callable[..., T]) -> Callable[..., T]:
    """The function itself: the server measures its handlers."""
    return func


def send_intermediate_predict_response(*_: object, **__: object) -> NoReturn:
    """Not here.

    Raises:
        NotImplementedError: with what to do.
    """
    raise NotImplementedError(
        "a handler of TorchServe cannot stream here: write a torchlane.Handler whose predict yields"
    )
