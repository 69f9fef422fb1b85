"""How each server wants its requests, and where its answer holds the scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import orjson

from loadtests.bench.workloads import BARE, CACHED, LITSERVE, MLSERVER, MOSEC, OURS, PLAIN
from models.tensors import Array

JSON, OCTET_STREAM = "application/json", "application/octet-stream"


class AnswerError(Exception):
    """An answer is not what this server answers; the message shows it."""


class Dialect(Protocol):
    """What differs from server to server. Items are [n, *shape]; `many` says that it is a batch."""

    def path(self, *, many: bool) -> str:
        """Where requests go."""

    def json_body(self, items: Array, *, many: bool) -> Any:
        """What is dumped as JSON."""

    def scores(self, content: bytes, *, many: bool) -> Array | None:
        """The scores [n, k] of an answer; None where the server computes nothing.

        Raises:
            AnswerError: if it is no good answer.
        """


class Plain:
    """`{"input": X}` or `{"inputs": [X, ...]}`, and `{"scores": [...]}` for each.

    Args:
        batch_path: where a batch goes.
    """

    def __init__(self, batch_path: str) -> None:
        self._batch_path = batch_path

    def path(self, *, many: bool) -> str:
        """See `Dialect`."""
        return self._batch_path if many else "/predict"

    def json_body(self, items: Array, *, many: bool) -> Any:
        """See `Dialect`."""
        return {"inputs": items.tolist()} if many else {"input": items[0].tolist()}

    def scores(self, content: bytes, *, many: bool) -> Array | None:
        """See `Dialect`."""
        found = _loaded(content)
        try:
            rows = found["predictions"] if many else [found]
            return np.array([row["scores"] for row in rows], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise AnswerError(f"no prediction with scores: {content[:200]!r}") from error


class Torchlane(Plain):
    """As `Plain`, with the prediction inside `{"model", "version", "prediction"}`."""

    def scores(self, content: bytes, *, many: bool) -> Array | None:
        """See `Dialect`; a model without labels answers its outputs."""
        found = _loaded(content)
        try:
            rows = found["predictions"] if many else [found["prediction"]]
            return np.array([_scores_of(row) for row in rows], np.float64)
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise AnswerError(f"no prediction with scores: {content[:200]!r}") from error


class V2:
    """The V2 inference protocol over REST."""

    def path(self, *, many: bool) -> str:
        """See `Dialect`."""
        return "/v2/models/model/infer"

    def json_body(self, items: Array, *, many: bool) -> Any:
        """See `Dialect`."""
        tensor = {"name": "input", "shape": list(items.shape), "datatype": "FP32"}
        return {"inputs": [{**tensor, "data": items.ravel().tolist()}]}

    def scores(self, content: bytes, *, many: bool) -> Array | None:
        """See `Dialect`."""
        found = _loaded(content)
        try:
            output = found["outputs"][0]
            return np.array(output["data"], np.float64).reshape(output["shape"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise AnswerError(f"no outputs: {content[:200]!r}") from error


class Nothing(Plain):
    """Answers `{}` to whatever comes."""

    def scores(self, content: bytes, *, many: bool) -> Array | None:
        """See `Dialect`."""
        if content != b"{}":
            raise AnswerError(f"{content[:200]!r} instead of {{}}")
        return None


DIALECTS: Mapping[str, Dialect] = {
    OURS: Torchlane("/batch-predict"),
    CACHED: Torchlane("/batch-predict"),
    PLAIN: Plain("/batch-predict"),
    MOSEC: Plain("/predict"),
    LITSERVE: Plain("/predict"),
    MLSERVER: V2(),
    BARE: Nothing("/predict"),
}


def _loaded(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise AnswerError(f"no JSON: {content[:200]!r}") from error


def _scores_of(row: Any) -> Any:
    return row["scores"] if "scores" in row else next(iter(row["outputs"].values()))
