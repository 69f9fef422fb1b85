"""The request format of each server, and the place of the scores in its answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from loadtests.bench.workloads import (
    BARE,
    INFINITY,
    MINILM,
    NATIVE,
    OUR_OWN,
    PLAIN,
    PYTRITON,
    Workload,
)
from models.manifest import Manifest
from models.tensors import Array

JSON, OCTET_STREAM = "application/json", "application/octet-stream"


class AnswerError(Exception):
    """An answer is not in this server's format; the message shows it."""


@dataclass(frozen=True, slots=True)
class BenchDialect:
    """The differences between servers.

    Items are [n, *shape], or n texts; `many` means a batch.

    Attributes:
        path, batch_path: where requests go.
        body: items and `many` -> the object to dump as JSON.
        rows: a parsed answer and `many` -> scores [n, k]; None if the server computes nothing.
        prefix: returns the prefix of the items' bytes in a binary request.
        loads: parses an answer.
    """

    path: str
    batch_path: str
    body: Callable[[Array, bool], Any]
    rows: Callable[[Any, bool], Any]
    prefix: Callable[[Array], bytes] = lambda _: b""
    loads: Callable[[bytes], Any] = orjson.loads

    def scores(self, content: bytes, *, many: bool) -> Array | None:
        """Return the scores [n, k] of an answer; None if the server computes nothing.

        Raises:
            AnswerError: if the answer is invalid.
        """
        try:
            rows = self.rows(self.loads(content), many)
            return None if rows is None else np.array(rows, np.float64)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise AnswerError(f"no prediction with scores: {content[:200]!r}") from error


def _inputs(items: Array, many: bool) -> Any:
    return {"inputs": items.tolist()} if many else {"input": items[0].tolist()}


def _scores(answer: Any, many: bool) -> Any:
    return [row["scores"] for row in (answer["predictions"] if many else [answer])]


def _ours(answer: Any, many: bool) -> Any:
    """Get scores from our answer; a model without labels answers with its outputs."""
    rows = answer["predictions"] if many else [answer["prediction"]]
    return [
        row["scores"] if "scores" in row else next(iter(row["outputs"].values())) for row in rows
    ]


def _nothing(answer: Any, many: bool) -> None:
    if answer != {}:
        raise ValueError("the bare answer is {}")


def v2(model: str, name: str) -> BenchDialect:
    """The Open Inference Protocol over REST, with binary answers to binary requests."""

    def tensor(items: Array) -> dict[str, Any]:
        return {"name": name, "shape": list(items.shape), "datatype": "FP32"}

    def body(items: Array, many: bool) -> Any:
        return {"inputs": [{**tensor(items), "data": items.ravel().tolist()}]}

    def prefix(items: Array) -> bytes:
        whole = {**tensor(items), "parameters": {"binary_data_size": 4 * items.size}}
        return orjson.dumps({"inputs": [whole], "parameters": {"binary_data_output": True}})

    def rows(answer: Any, many: bool) -> Any:
        output = answer["outputs"][0]
        return np.array(output["data"], np.float64).reshape(output["shape"])

    path = f"/v2/models/{model}/infer"
    return BenchDialect(path, path, body, rows, prefix, _with_bytes)


def openai(path: str, model: str) -> BenchDialect:
    """Embeddings with OpenAI's API."""

    def body(items: Array, many: bool) -> Any:
        return {"model": model, "input": items.tolist() if many else items[0].tolist()}

    def rows(answer: Any, many: bool) -> Any:
        return [each["embedding"] for each in answer["data"]]

    return BenchDialect(path, path, body, rows)


def _with_bytes(content: bytes) -> Any:
    """Parse an answer with its only output in JSON, or in bytes after it."""
    answer, end = json.JSONDecoder().raw_decode(content.decode("latin-1"))
    if "outputs" in answer and "data" not in answer["outputs"][0]:
        answer["outputs"][0]["data"] = np.frombuffer(content[end:], "<f4")
    return answer


TORCHLANE = BenchDialect("/predict", "/batch-predict", _inputs, _ours)
ONE_ROUTE = BenchDialect("/predict", "/predict", _inputs, _scores)  # mosec, LitServe
DIALECTS = {
    NATIVE: TORCHLANE,
    PLAIN: BenchDialect("/predict", "/batch-predict", _inputs, _scores),
    PYTRITON: v2("model", "input"),
    INFINITY: openai("/embeddings", MINILM),
    BARE: BenchDialect("/predict", "/predict", _inputs, _nothing),
}


def dialect_of(server: str, workload: Workload, manifest: Manifest) -> BenchDialect:
    if server not in OUR_OWN or server == NATIVE:
        return DIALECTS.get(server, ONE_ROUTE)
    if workload.is_text:
        return openai("/v1/embeddings", manifest.model)
    return v2(manifest.model, manifest.inputs[0].name) if workload.v2 else TORCHLANE
