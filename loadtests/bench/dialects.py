"""The request format of each server, and the place of the scores in its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from loadtests.bench import protobuf
from loadtests.bench.own_models import MINILM
from loadtests.bench.workloads import (
    BARE,
    BEFORE,
    BF16,
    INFINITY,
    INT8,
    KSERVE,
    LITSERVE,
    MLSERVER,
    MOSEC,
    NATIVE,
    OUR_OWN,
    OURS,
    PLAIN,
    PLAIN_ENCODER,
    PYTHON,
    PYTRITON,
    Workload,
)
from models.manifest import Manifest
from models.tensors import Array

JSON, OCTET_STREAM = "application/json", "application/octet-stream"


class AnswerError(Exception):
    """An answer is not in this server's format; the message shows it."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The differences between servers.

    Items are [n, *shape], or n texts; `many` means a batch.

    Attributes:
        single_path, batch_path: where requests go.
        dumped: items and `many` -> the object to dump as JSON.
        rows: a parsed answer and `many` -> scores [n, k]; None if the server computes nothing.
        framed: returns the prefix of the items' bytes in a binary request.
        loads: parses an answer.
    """

    single_path: str
    batch_path: str
    dumped: Callable[[Array, bool], Any]
    rows: Callable[[Any, bool], Any]
    framed: Callable[[Array], bytes] = lambda _: b""
    loads: Callable[[bytes], Any] = orjson.loads

    def path(self, *, many: bool) -> str:
        """Return the path for requests."""
        return self.batch_path if many else self.single_path

    def json_body(self, items: Array, *, many: bool) -> Any:
        """Return the object to dump as JSON."""
        return self.dumped(items, many)

    def scores(self, content: bytes, *, many: bool) -> Array | None:
        """Return the scores [n, k] of an answer; None if the server computes nothing.

        Raises:
            AnswerError: if the answer is invalid.
        """
        try:
            found = self.rows(self.loads(content), many)
            return None if found is None else np.array(found, np.float64)
        except json.JSONDecodeError as error:
            raise AnswerError(f"not JSON: {content[:200]!r}") from error
        except (AttributeError, LookupError, TypeError, ValueError, StopIteration) as error:
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


def v2(model: str, name: str) -> Dialect:
    """The Open Inference Protocol over REST, with binary answers to binary requests.

    Args:
        model: its name.
        name: of its only input.
    """

    def tensor(items: Array) -> dict[str, Any]:
        return {"name": name, "shape": list(items.shape), "datatype": "FP32"}

    def dumped(items: Array, many: bool) -> Any:
        return {"inputs": [{**tensor(items), "data": items.ravel().tolist()}]}

    def framed(items: Array) -> bytes:
        given = {**tensor(items), "parameters": {"binary_data_size": 4 * items.size}}
        return orjson.dumps({"inputs": [given], "parameters": {"binary_data_output": True}})

    path = f"/v2/models/{model}/infer"
    return Dialect(path, path, dumped, _flat, framed, _with_bytes)


def by_grpc(model: str, name: str) -> Dialect:
    """The same over gRPC: complete messages instead of HTTP bodies."""

    def framed(items: Array) -> bytes:
        return protobuf.infer_head(model, name, items.shape, 4 * items.size)

    def rows(answer: bytes, many: bool) -> Any:
        return np.frombuffer(answer, "<f4")[np.newaxis]

    return Dialect("", "", _inputs, rows, framed, protobuf.raw_output)


def openai(path: str, model: str) -> Dialect:
    """Embeddings with OpenAI's API.

    Args:
        path: where requests go.
        model: its name.
    """

    def dumped(items: Array, many: bool) -> Any:
        return {"model": model, "input": items.tolist() if many else items[0].tolist()}

    def rows(answer: Any, many: bool) -> Any:
        return [each["embedding"] for each in answer["data"]]

    return Dialect(path, path, dumped, rows)


def _flat(answer: Any, many: bool) -> Any:
    output = answer["outputs"][0]
    return np.array(output["data"], np.float64).reshape(output["shape"])


def _with_bytes(content: bytes) -> Any:
    """Parse an answer with its only output in JSON, or in bytes after it."""
    answer, end = json.JSONDecoder().raw_decode(content.decode("latin-1"))
    if "outputs" in answer and "data" not in answer["outputs"][0]:
        answer["outputs"][0]["data"] = np.frombuffer(content[end:], "<f4")
    return answer


def _nothing(answer: Any, many: bool) -> None:
    if answer != {}:
        raise ValueError("the bare answer is {}")


TORCHLANE = Dialect("/predict", "/batch-predict", _inputs, _ours)
PEER = "model", "input"  # the names that peers with this protocol use
V2_PEER = v2(*PEER)
DIALECTS: Mapping[str, Dialect] = {
    OURS: TORCHLANE,
    PYTHON: TORCHLANE,
    BEFORE: TORCHLANE,
    PLAIN: Dialect("/predict", "/batch-predict", _inputs, _scores),
    MOSEC: Dialect("/predict", "/predict", _inputs, _scores),
    LITSERVE: Dialect("/predict", "/predict", _inputs, _scores),
    NATIVE: TORCHLANE,
    MLSERVER: V2_PEER,
    KSERVE: V2_PEER,
    PYTRITON: V2_PEER,
    INFINITY: openai("/embeddings", MINILM),
    PLAIN_ENCODER: Dialect("/predict", "/batch-predict", _inputs, _scores),
    INT8: TORCHLANE,
    BF16: TORCHLANE,
    BARE: Dialect("/predict", "/predict", _inputs, _nothing),
}


def dialect_of(server: str, workload: Workload, manifest: Manifest) -> Dialect:
    """Return the dialect of a server in a workload."""
    if workload.is_text and server in OUR_OWN and server != NATIVE:
        return openai("/v1/embeddings", manifest.model)
    if workload.v2 and server == OURS:
        names = manifest.model, manifest.inputs[0].name
    elif workload.body == "grpc":
        names = PEER
    else:
        return DIALECTS[server]
    return by_grpc(*names) if workload.body == "grpc" else v2(*names)
