"""Whole HTTP requests, through the server's own protocol to its answers; the model only doubles."""

from __future__ import annotations

import asyncio
import atexit
import functools
import gzip
import logging
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import structlog
import uvicorn
from uvicorn.server import ServerState

from app.api.errors import STATUS
from app.api.transport.connection import Connection
from app.main import create_app
from app.settings import Settings
from tests.artifacts import write_artifact
from tests.forms import FORM, files
from tests.fuzz.target import Finding, Target
from tests.http.rules import RULES
from tests.integration.listening import Doubles
from tests.integration.wire import request

PATIENCE_S = 0.005  # of a client: an answer takes a tenth of it, the rest of a body never comes
LIMIT_S = 5.0
MAX_BYTES = 2048  # of a case
CODED = {"gzip": gzip.compress(b'{"input": [1, 2]}'), "deflate": zlib.compress(bytes(8))}
KNOWN = {200, 400, 405} | (set(STATUS.values()) - {500})


class Ear(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 4321), "sockname": ("192.0.2.2", 80)})
        self.heard = bytearray()
        self._closing = False

    def write(self, data: Any) -> None:
        """See `asyncio.Transport`."""
        if not self._closing:
            self.heard += data

    def is_closing(self) -> bool:
        """See `asyncio.Transport`."""
        return self._closing

    def close(self) -> None:
        """See `asyncio.Transport`."""
        self._closing = True

    def write_eof(self) -> None:
        """See `asyncio.Transport`; the client leaves by itself."""

    def get_write_buffer_size(self) -> int:
        """See `asyncio.Transport`; what is written has been read."""
        return 0

    def pause_reading(self) -> None:
        """See `asyncio.Transport`; what is fed has been read."""

    def resume_reading(self) -> None:
        """See `asyncio.Transport`."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See `asyncio.Transport`."""


class Served:
    """An application that is ready, on an event loop that turns as long as a case needs it to."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.problems: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        folder = Path(tempfile.mkdtemp(prefix="torchlane-fuzz-"))
        atexit.register(shutil.rmtree, folder)
        write_artifact(folder, "double")
        self.doubles = Doubles(lambda inputs: {"y": inputs["x"].clip(-1e38, 1e38) * 2})
        settings = Settings(
            model_dir=folder, _env_file=None, cache_bytes=100_000, max_body_bytes=2000, max_items=8
        )
        self.app = create_app(settings, self.doubles)
        self.state = ServerState()
        self.config = uvicorn.Config(self.app, ws="none", log_config=None, access_log=False)
        self.config.load()
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._lifespan = self.app.router.lifespan_context(self.app)
        await self._lifespan.__aenter__()
        async with asyncio.timeout(LIMIT_S):
            while not self.app.state.lifecycle.readiness().ready:
                await asyncio.sleep(0.005)

    async def ask(self, pieces: list[bytes]) -> bytes:
        """What is answered to a client that sends this, waits a little, and leaves."""
        ear = Ear()
        connection: Connection = self.app.state.connection(
            config=self.config, server_state=self.state, app_state={}
        )
        connection.connection_made(ear)
        metrics = connection.service.metrics
        for piece in pieces:
            if not ear.is_closing():
                connection.data_received(piece)
                await asyncio.sleep(0)
        until = self.loop.time() + PATIENCE_S
        while (self.state.tasks or metrics.requests_open) and self.loop.time() < until:
            await asyncio.sleep(0)
        connection.connection_lost(None)
        until = self.loop.time() + LIMIT_S
        while self.state.tasks or metrics.requests_open:
            if self.loop.time() > until:
                raise Finding("a request that never ends, although its client has gone")
            await asyncio.sleep(0)
        if self.problems or self.state.connections:
            raise Finding(f"{self.problems}, {len(self.state.connections)} connections left")
        self.doubles.one.batches.clear()
        return bytes(ear.heard)


@functools.cache
def served() -> Served:
    """One for the whole process."""
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return Served()


def case(data: bytes) -> None:
    """The first byte says where the second piece begins; the rest is what a client sends."""
    if not data:
        return
    at = data[0] * 4
    pieces = [piece for piece in (data[1 : 1 + at], data[1 + at :]) if piece]
    mine = served()
    heard = mine.loop.run_until_complete(mine.ask(pieces))
    while heard:
        heard = _answer(heard, headless=b"HEAD" in data)


def _answer(heard: bytes, *, headless: bool) -> bytes:
    """Judge one answer; return what comes behind it."""
    head, found, rest = heard.partition(b"\r\n\r\n")
    line, *lines = head.split(b"\r\n")
    version, status, *_ = line.split(b" ")
    if not found or version != b"HTTP/1.1":
        raise Finding(f"no answer: {heard[:200]!r}")
    if status == b"100":
        return rest
    headers = {name.lower(): value for name, _, value in (each.partition(b": ") for each in lines)}
    if int(status) not in KNOWN:
        raise Finding(f"{line!r} {rest[:500]!r}")
    if b"x-request-id" not in headers:
        raise Finding(f"headers {headers}")
    if headers.get(b"content-type") == b"text/event-stream":
        return b"" if headless else _behind_chunks(rest)
    if b"content-length" not in headers:
        raise Finding(f"headers {headers}")
    size = int(headers[b"content-length"])
    if headless:
        return b""  # its length is told, and nothing comes
    if int(status) >= 400:
        _error(rest[:size], headers)
    return rest[size:]


def _behind_chunks(rest: bytes) -> bytes:
    """What comes behind a stream; if its client leaves, it ends after any chunk."""
    while rest:
        size, found, data = rest.partition(b"\r\n")
        length = int(size, 16) if size.isalnum() else -1
        if not found or data[length : length + 2] != b"\r\n":
            raise Finding(f"no chunk: {rest[:200]!r}")
        rest = data[length + 2 :]
        if length == 0:
            return rest
    return b""


# Of the Open Inference Protocol, and of TorchServe.
OTHER_ERRORS = ({"error"}, {"code", "type", "message"})


def _error(content: bytes, headers: dict[bytes, bytes]) -> None:
    try:
        told = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Finding(f"no JSON: {content[:200]!r}") from error
    kept = {"error", "code", "request_id", "details"}
    ours = set(told) - {"retry_after_ms"} == kept
    if not ours and set(told) not in OTHER_ERRORS:
        raise Finding(f"{told} with {headers}")
    if ours and told["request_id"] != headers[b"x-request-id"].decode():
        raise Finding(f"{told} with {headers}")
    if b"application/json" not in headers[b"content-type"]:
        raise Finding(f"headers {headers}")


def infer_of(*, binary: bool) -> tuple[bytes, bytes]:
    """JSON and bytes of an infer request."""
    x = {"name": "x", "shape": [1, 2], "datatype": "FP32"}
    if not binary:
        return orjson.dumps({"inputs": [{**x, "data": [1, 2]}]}), b""
    sized = {**x, "parameters": {"binary_data_size": 8}}
    return orjson.dumps({"inputs": [sized], "parameters": {"binary_data_output": True}}), bytes(8)


def seeds() -> Iterator[bytes]:
    """Every route, header and way to send a body."""
    whole, cut = b"\xff", b"\x05"
    batch = b'{"inputs": [[1, 2], [3, 4]]}'
    for start in (whole, cut):
        yield start + request()
        yield start + request("/batch-predict", batch, x_torchlane_timeout_ms="250.5")
        yield start + request("/models/double/versions/1/predict", chunk_bytes=3)
        yield start + request(content_type="application/octet-stream", body=bytes(8))
        yield start + request(content_type=FORM, body=files(bytes(8)), expect="100-continue")
        yield start + request("/batch-predict", files(bytes(8), b"{}"), content_type=FORM)
        yield start + request(accept="application/x-npy;q=0.5, application/octet-stream")
        yield start + request(expect="100-continue", x_request_id="abc-1")
        yield start + request() + request("/models/double/predict?x=1")
        yield start + request(version="1.0", connection="keep-alive")
    head, octets = infer_of(binary=True)
    for start in (whole, cut):
        yield start + request("/v2/models/double/infer", infer_of(binary=False)[0])
        yield start + request(
            "/v2/models/double/versions/1/infer",
            head + octets,
            inference_header_content_length=str(len(head)),
        )
        yield start + request("/predictions/double/1", b'{"data": [1, 2]}', method="PUT")
        yield start + request("/v2/repository/index", b'{"ready": true}')
    for path in (
        *("/models", "/models/double", "/health/live", "/health/ready", "/live", "/metrics"),
        *("/docs", "/v2", "/v2/models/double/config", "/v2/models/stats", "/v2/health/ready"),
        "/ping",
    ):
        yield whole + request(path, b"", method="GET")
        yield whole + request(path, b"", method="HEAD")
    yield whole + request("/models/%64ouble/predict", method="OPTIONS")
    yield whole + request("*", b"", method="OPTIONS")
    yield whole + request(content_length="99999999999999999999")
    for rule in RULES.values():
        sent = b"".join(rule.sent)
        if len(sent) < MAX_BYTES:
            yield cut + sent
    for coding, body in CODED.items():
        yield whole + request(content_encoding=coding, body=body)
        yield cut + request(content_encoding=coding, body=body[:-3], chunk_bytes=7)


WORDS = (
    *(b"POST ", b"GET ", b"HEAD ", b"PUT ", b"OPTIONS ", b"CONNECT ", b"QUERY ", b" HTTP/1.1\r\n"),
    *(
        b" HTTP/1.0\r\n",
        b" HTTP/2.0\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b": ",
        b"/predict",
        b"/batch-predict",
    ),
    *(
        b"/models/",
        b"double",
        b"/versions/",
        b"1",
        b"/openapi.json",
        b"%2e%2e",
        b"%00",
        b"?",
        b"#",
        b"//",
    ),
    *(b"content-length: ", b"content-type: ", b"transfer-encoding: chunked\r\n", b"0\r\n\r\n"),
    *(b"connection: close\r\n", b"expect: 100-continue\r\n", b"accept: ", b"x-request-id: "),
    *(
        b"x-torchlane-timeout-ms: ",
        b"1e3",
        b"nan",
        b"inf",
        b"-1",
        b"1_0",
        b"0.0001",
        b"q=",
        b";",
        b",",
    ),
    *(b"inference-header-content-length: ", b"/v2/models/double/infer", b"/predictions/double"),
    *(b"application/json", b"application/octet-stream", b"application/x-npy", b"image/png", b"*/*"),
    *(
        b'{"input": [1, 2]}',
        b"host: ",
        b"authorization: Bearer ",
        b"connection: upgrade\r\nupgrade: h2c\r\n",
        b"content-encoding: gzip\r\n",
        b"content-encoding: deflate\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"0\r\nhost: a\r\n\r\n",
        b"http://loopback",
        b"multipart/form-data; boundary=a\r\n",
        b"--a\r\nContent-Disposition: form-data; filename=a\r\n\r\n",
        b"\xff",
        b"\0",
    ),
)
TARGET = Target(case, seeds, WORDS, max_bytes=MAX_BYTES)
