"""Parses answers to arrays: nested numbers, .npy files, the highest scores in order."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Mapping, Sequence

import numpy as np

from models.tensors import Array, TensorSpec

ALL_SCORES = "?top_k=999999999"  # overrides the manifest's number
NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# The errors that numpy raises for headers of random bytes, which it parses as Python.
NPY_ERRORS = (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)


class WrongAnswer(Exception):
    """A prediction does not have the manifest's form; the message says how."""


def numbers(spec: TensorSpec, value: object) -> Array:
    """Parse an output in JSON.

    Raises:
        WrongAnswer: if it is not an array of numbers.
    """
    try:
        array = np.array(value)
    except ValueError as error:  # ragged
        raise WrongAnswer(f"{spec.name} is nested unevenly") from error
    if array.dtype.kind not in "fiub":
        raise WrongAnswer(f"{spec.name} has a value that is not a number")  # null: NaN, infinity
    return array


def npy(spec: TensorSpec, body: bytes) -> Array:
    """Parse the array of an .npy file, rejecting other files that numpy would load.

    Raises:
        NPY_ERRORS: if it is not an .npy file.
    """
    file = io.BytesIO(body)
    version = np.lib.format.read_magic(file)
    if version not in NPY_HEADERS:
        raise ValueError(f"a header of version {version}")
    shape, by_columns, dtype = NPY_HEADERS[version](file)
    if dtype.newbyteorder("<") != np.dtype(spec.dtype).newbyteorder("<"):
        raise ValueError(f"an array of {dtype}")
    array = np.frombuffer(body, dtype, offset=file.tell())
    return array.reshape(shape, order="F" if by_columns else "C")


def in_place(
    ranked: Array, prediction: Mapping[str, object], labels: Sequence[str] | None
) -> Array:
    """Return all scores in the manifest's order.

    Args:
        ranked: the scores as received.
        prediction: with their `indices`, and `labels` if the model has any.
        labels: of the manifest.

    Raises:
        WrongAnswer: if they do not descend, or indices or labels do not match.
    """
    count, indices = len(np.atleast_1d(ranked)), prediction.get("indices")
    wanted = sorted(map(str, range(count)))
    if not isinstance(indices, list) or sorted(map(str, indices)) != wanted:
        raise WrongAnswer(f"indices that are not those of {count} scores")
    if ranked.ndim != 1 or (np.diff(ranked) > 0).any():
        raise WrongAnswer("scores that do not descend")
    if labels is not None and (
        count != len(labels) or prediction.get("labels") != [labels[index] for index in indices]
    ):
        raise WrongAnswer("labels that are not those of the indices")
    whole = np.empty_like(ranked)
    whole[indices] = ranked
    return whole
