"""The options for inputs that are categories."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from pydantic import JsonValue, ValidationError

from export.errors import UsageError
from export.reading.codecs import first_of
from export.reading.declared import DeclaredInput
from export.reading.text_files import read_text
from models.categories import Categories, by_input
from models.manifest import MAX_MANIFEST_VALUES
from models.system.local_paths import NotLocal, local_path

MAX_FILE_BYTES = 16 << 20
MARKS = ",:[{"  # counted as values of the manifest, in names too
MAX_MARKS = MAX_MANIFEST_VALUES * 3 // 4  # the manifest has other values


def read_categories(args: argparse.Namespace) -> tuple[Categories, ...]:
    """Read the files of the options.

    Raises:
        UsageError: if one cannot be read, or the options contradict each other.
    """
    files = dict(_pair("--categories", text) for text in args.categories or ())
    unknown = dict(_pair("--unknown", text) for text in args.unknown or ())
    if len(files) < len(args.categories or ()) or len(unknown) < len(args.unknown or ()):
        raise UsageError("--categories, --unknown: give each input once")
    if strays := [name for name in unknown if name not in files]:
        raise UsageError(f"--unknown {strays[0]}: the input has no --categories {strays[0]}=FILE")
    categories = []
    for name, file in files.items():
        index = unknown.get(name)
        if index is not None and not (index.isascii() and index.isdigit() and len(index) < 10):
            raise UsageError(f"--unknown {name}={index}: the index must be a whole number from 0")
        fields = {"input": name, "names": _names(file), "unknown": index and int(index)}
        try:
            categories.append(Categories.model_validate(fields))
        except ValidationError as error:
            raise UsageError(f"--categories {name}={file}: {first_of(error)}") from error
    names = "".join(name for each in categories for name in each.names)
    count = sum(len(each.names) for each in categories)
    marks = count + sum(map(names.count, MARKS))
    if marks > MAX_MARKS:
        raise UsageError(
            f"--categories: {count:,} names with {marks - count:,} commas, colons and brackets in "
            f"them are too much for the manifest; at most {MAX_MARKS:,} of both in total: shorten "
            "the names, or leave --categories out and send indices"
        )
    return tuple(categories)


def with_ranges(
    inputs: Sequence[DeclaredInput], categories: Sequence[Categories]
) -> tuple[DeclaredInput, ...]:
    """Return the inputs; those of categories that have no range get that of the indices."""
    by_name = by_input(categories)

    def with_range(declaration: DeclaredInput) -> DeclaredInput:
        known = by_name[declaration.name]
        is_last = known.largest < len(known.names)
        option = "--categories" if is_last else f"--unknown {known.input}={known.unknown}"
        return replace(declaration, range=(0, known.largest), range_option=option)

    return tuple(
        with_range(each)
        if each.name in by_name and each.range is None and np.dtype(each.dtype).kind in "iu"
        else each
        for each in inputs
    )


def with_names(
    example: JsonValue, inputs: Sequence[str], categories: Sequence[Categories]
) -> JsonValue:
    """Return an example for people, with names in place of indices that have one.

    Args:
        example: one item in JSON: by input, or the value of the only input.
        inputs: the names of the inputs.
        categories: of the inputs.
    """
    by_name = by_input(categories)
    if len(inputs) == 1:
        return _with_name(example, by_name.get(inputs[0]))
    if not isinstance(example, Mapping):
        return example
    return {name: _with_name(value, by_name.get(name)) for name, value in example.items()}


def _with_name(value: JsonValue, categories: Categories | None) -> JsonValue:
    if categories is None:
        return value
    if isinstance(value, list):
        return [_with_name(each, categories) for each in value]
    is_index = isinstance(value, int) and 0 <= value < len(categories.names)
    return categories.names[value] if is_index and isinstance(value, int) else value


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not (name and equals and rest):
        raise UsageError(f"{option} {text!r}: must be the name of an input, =, and its value")
    return name, rest


def _names(path: str) -> list[str]:
    try:
        text = read_text("--categories", local_path(path), MAX_FILE_BYTES)
    except NotLocal as error:
        raise UsageError(f"--categories: {error}") from error
    names = [line.strip() for line in text.rstrip().replace("\r\n", "\n").split("\n")]
    if "" in names:
        raise UsageError(f"--categories: line {names.index('') + 1} of {path} is empty")
    return names
