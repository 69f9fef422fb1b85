"""How each server wants its requests, and where its answer holds the scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from loadtests.bench.workloads import BARE, CACHED, LITSERVE, MLSERVER, MOSEC, OURS, PLAIN
from models.tensors import Array

JSON, OCTET_STREAM = "application/json", "application/octet-stream"


class AnswerError(Exception):
    """An answer is not what this server answers; the message shows it."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs from server to server. Items are [n, *shape]; `many` says that it is a batch.

    Attributes:
        single_path, batch_path: where requests go.
        dumped: what is dumped as JSON, of items and `many`.
        rows: the scores [n, k] in a parsed answer, by `many`; None where the server computes
            nothing.
    """

    single_path: str
    batch_path: str
    dumped: Callable[[Array, bool], Any]
    rows: Callable[[Any, bool], Any]

    def path(self, *, many: bool) -> str:
        """Where requests go."""
        return self.batch_path if many else self.single_path

    def json_body(self, items: Array, *, many: bool) -> Any:
        """What is dumped as JSON."""
        return self.dumped(items, many)

    def scores(self, content: bytes, *, many: bool) -> Array | None:
        """The scores [n, k] of an answer; None where the server computes nothing.

        Raises:
            AnswerError: if it is no good answer.
        """
        try:
            found = self.rows(orjson.loads(content), many)
            return None if found is None else np.array(found, np.float64)
        except orjson.JSONDecodeError as error:
            raise AnswerError(f"no JSON: {content[:200]!r}") from error
        except (AttributeError, LookupError, TypeError, ValueError, StopIteration) as error:
            raise AnswerError(f"no prediction with scores: {content[:200]!r}") from error


def _inputs(items: Array, many: bool) -> Any:
    return {"inputs": items.tolist()} if many else {"input": items[0].tolist()}


def _scores(answer: Any, many: bool) -> Any:
    return [row["scores"] for row in (answer["predictions"] if many else [answer])]


def _ours(answer: Any, many: bool) -> Any:
    """A model without labels answers its outputs."""
    rows = answer["predictions"] if many else [answer["prediction"]]
    return [
        row["scores"] if "scores" in row else next(iter(row["outputs"].values())) for row in rows
    ]


def _tensor(items: Array, many: bool) -> Any:
    """Of the V2 inference protocol over REST."""
    tensor = {"name": "input", "shape": list(items.shape), "datatype": "FP32"}
    return {"inputs": [{**tensor, "data": items.ravel().tolist()}]}


def _flat(answer: Any, many: bool) -> Any:
    output = answer["outputs"][0]
    return np.array(output["data"], np.float64).reshape(output["shape"])


def _nothing(answer: Any, many: bool) -> None:
    if answer != {}:
        raise ValueError("the bare answer is {}")


TORCHLANE = Dialect("/predict", "/batch-predict", _inputs, _ours)
INFER = "/v2/models/model/infer"
DIALECTS: Mapping[str, Dialect] = {
    OURS: TORCHLANE,
    CACHED: TORCHLANE,
    PLAIN: Dialect("/predict", "/batch-predict", _inputs, _scores),
    MOSEC: Dialect("/predict", "/predict", _inputs, _scores),
    LITSERVE: Dialect("/predict", "/predict", _inputs, _scores),
    MLSERVER: Dialect(INFER, INFER, _tensor, _flat),
    BARE: Dialect("/predict", "/predict", _inputs, _nothing),
}
