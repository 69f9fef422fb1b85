"""A Torchlane in miniature that can be told to lie: a linear model behind the same two routes."""

from __future__ import annotations

import contextlib
import http.server
import io
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from loadtests.traffic.target import Reply, Target, from_models
from models.codec_specs import PicturePreprocess
from models.inputs.preprocess import preprocess
from models.tensors import Array, TensorSpec

MATRIX: tuple[dict[str, Any], ...] = ({"name": "x", "dtype": "float32", "shape": [-1, 2, 3]},)
LABELS = ["ant", "bee", "cat"]
HOW: dict[str, Any] = {"width": 8, "height": 6, "channels": 1, "mean": [0.3], "std": [0.35]}
PICTURE: tuple[dict[str, Any], ...] = (
    {"name": "image", "dtype": "float32", "shape": [-1, 1, 6, 8]},
)
PICTURES: dict[str, Any] = {"kind": "image", "preprocess": HOW}
TEXT: dict[str, Any] = {"kind": "text", "task": "embed", "max_tokens": 64, "mask": None}
TOKENS: tuple[dict[str, Any], ...] = (
    {"name": "input_ids", "dtype": "int64", "shape": [-1, -1], "free_max": 64},
)
TOLERANCE = {"absolute": 1e-5, "relative": 1e-4, "of_range": 1e-5}
URL = "http://fake.invalid"

# Takes the right outputs of a request, one array per item, and gives what is answered instead.
Lie = Callable[[list[Array]], list[Array]]


@dataclass
class FakeServer:
    """Answers as its manifest says, from one matrix of fixed random numbers.

    Attributes:
        inputs: of the manifest; several are laid one after another.
        codec: of the manifest; with labels or without.
        lie: what becomes of right outputs; None: nothing.
        precision: what it says to compute in.
        aligned: whether it refuses inputs whose first axes are of different lengths.
        bodies: all that were received.
    """

    inputs: Sequence[Mapping[str, Any]] = MATRIX
    codec: Mapping[str, Any] = field(default_factory=lambda: {"kind": "tensor"})
    lie: Lie | None = None
    precision: str = "float32"
    aligned: bool = False
    bodies: list[bytes] = field(default_factory=list)

    @property
    def manifest(self) -> dict[str, Any]:
        return {
            "inputs": list(self.inputs),
            "outputs": [{"name": "y", "dtype": "float32", "shape": [-1, len(LABELS)]}],
            "codec": dict(self.codec),
            "variants": {"script": {"precision": self.precision, "tolerance": TOLERANCE}},
        }

    def models(self) -> bytes:
        info = {"name": "fake", "default": True, "state": "ready", "version": 3}
        info |= {"precision": self.precision, "manifest": self.manifest}
        return orjson.dumps({"models": [info]})

    def target(self, url: str = URL) -> Target:
        return from_models(self.models(), url)

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer one request, as `loadtests.traffic.reference_inputs.Send`."""
        self.bodies.append(body)
        kind, many = headers["Content-Type"], "batch-predict" in path
        if kind == "text/csv":
            return _refusal(415, "unsupported_media_type")
        try:
            items = self._items(kind, body, many=many)
        except (ValueError, KeyError, TypeError):
            return _refusal(422, "invalid_input")
        outputs = [self._output(item) for item in items]
        if self.lie is not None:
            outputs = self.lie(outputs)
        accept = headers.get("Accept", "application/json")
        if accept != "application/json":
            return Reply(200, {"content-type": accept}, _bytes(accept, outputs[0]))
        predictions = [self._prediction(output) for output in outputs]
        last = {"predictions": predictions} if many else {"prediction": predictions[0]}
        answer = orjson.dumps({"model": "fake", "version": 3, **last})
        return Reply(200, {"content-type": "application/json"}, answer)

    def _items(self, kind: str, body: bytes, *, many: bool) -> list[Array]:
        spec = TensorSpec.model_validate(self.inputs[0])
        if kind == "image/png":
            return [preprocess(body, PicturePreprocess(**self.codec["preprocess"]))]
        if kind == "text/plain":
            return [self._flat(body.decode())]
        if kind == "application/octet-stream":
            return [np.frombuffer(body, np.dtype(spec.dtype).newbyteorder("<"))]
        if kind == "application/x-npy":
            return [np.load(io.BytesIO(body))]
        values = orjson.loads(body)["inputs" if many else "input"]
        return [self._flat(value) for value in (values if many else [values])]

    def _flat(self, value: Any) -> Array:
        if self.codec["kind"] == "text":
            texts = value if self.codec.get("pairs") else [value]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("no text")
            return np.random.default_rng(zlib.crc32("|".join(texts).encode())).standard_normal(8)
        named = value if len(self.inputs) > 1 else {self.inputs[0]["name"]: value}
        arrays, lengths = list[Array](), list[int]()
        for spec in map(TensorSpec.model_validate, self.inputs):
            array = np.array(named[spec.name], dtype=spec.dtype)
            if not spec.takes(array.shape):
                raise ValueError("wrong shape")
            if self.aligned and arrays and array.shape[0] != lengths[0]:
                raise ValueError("inputs of different lengths")
            lengths.append(len(array) if array.ndim else 0)
            arrays.append(array.reshape(-1).astype(np.float64))
        return np.concatenate(arrays)

    def _output(self, item: Array) -> Array:
        flat = item.reshape(-1).astype(np.float64)
        matrix = np.random.default_rng(7).standard_normal((len(LABELS), flat.size))
        output = matrix @ flat / np.sqrt(flat.size)
        if self.codec.get("scores") == "softmax":
            output = np.exp(output) / np.exp(output).sum()
        return np.asarray(output.astype(np.float32))

    def _prediction(self, output: Array) -> dict[str, object]:
        if self.codec.get("top_k"):
            order = np.argsort(-output, kind="stable").tolist()
            highest = output[order].tolist()
            ranked: dict[str, object] = {"indices": order}
            if not self.codec.get("labels"):
                return {"outputs": {"y": highest}, **ranked}
            labels = [LABELS[index] for index in order]
            first = {"label": labels[0], "score": highest[0]}
            return {**first, "scores": highest, "labels": labels, **ranked}
        if not self.codec.get("labels"):
            return {"outputs": {"y": output.tolist()}}
        scores = output.tolist()
        best = max(range(len(scores)), key=scores.__getitem__)
        return {"label": LABELS[best], "score": scores[best], "scores": scores}


LABELLED: dict[str, Any] = {"kind": "tensor", "labels": LABELS, "scores": "softmax"}


class AnswersOfTheOneBefore:
    """A lie: every tenth answer is the one before it, as a shifted row or a wrong future would."""

    def __init__(self) -> None:
        self._seen = 0
        self._before: Array | None = None

    def __call__(self, outputs: list[Array]) -> list[Array]:
        self._seen += 1
        before, self._before = self._before, outputs[0]
        if before is not None and self._seen % 10 == 0:
            return [before, *outputs[1:]]
        return outputs


def swapped(outputs: list[Array]) -> list[Array]:
    """A lie: a batch comes back in another order."""
    return outputs[::-1]


def wrong_number(outputs: list[Array]) -> list[Array]:
    """A lie: one number of the last item is off by a hundredth."""
    return [*outputs[:-1], outputs[-1] + np.array([0, 0.01, 0], np.float32)]


def one_too_few(outputs: list[Array]) -> list[Array]:
    """A lie: the last item has no answer."""
    return outputs[:-1]


def not_finite(outputs: list[Array]) -> list[Array]:
    """A lie: NaN, which JSON shows as null."""
    return [np.full_like(output, np.nan) for output in outputs]


@contextlib.contextmanager
def listening(fake: FakeServer) -> Iterator[str]:
    """The fake behind real HTTP on a free port of the loopback interface; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or every answer waits 40 ms for its head's receipt

        def do_GET(self) -> None:
            self._send(Reply(200, {"content-type": "application/json"}, fake.models()))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.title(): value for name, value in self.headers.items()}
            with lock:
                reply = fake.post(self.path, headers, body)
            self._send(reply)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

    lock = threading.Lock()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with serving(server) as url:
        yield url


@contextlib.contextmanager
def serving(server: http.server.HTTPServer) -> Iterator[str]:
    """The address of a server that runs in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _bytes(accept: str, output: Array) -> bytes:
    if accept == "application/octet-stream":
        return output.astype("<f4").tobytes()
    buffer = io.BytesIO()
    np.save(buffer, output)
    return buffer.getvalue()


def _refusal(status: int, code: str) -> Reply:
    error = {"error": "what to do", "code": code, "request_id": "r", "details": []}
    return Reply(status, {"content-type": "application/json"}, orjson.dumps(error))
