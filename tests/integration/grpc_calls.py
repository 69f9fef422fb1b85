"""Calls of the gRPC interface, as bytes, on an application in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import numpy as np
import pytest
from google.protobuf.message import Message

from app.api.oip.grpc.protos import inference_pb2 as pb
from tests.e2e.server import free_port
from tests.integration.listening import Listening, listening
from tests.integration.wire import request

INFERENCE, HEALTH = "inference.GRPCInferenceService", "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
OCTETS = np.array([1, 2], "<f4").tobytes()
MAX_BODY_BYTES = 100_000
LARGE_FIELD = b"\x40\x01a\x7f\xad\x1a" + b"x" * 3500  # RFC 7541: 7-bit prefix; to be referred to
REFERENCE = b"\xbe"  # to the last such field
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": f"/{INFERENCE}/ServerLive".encode(),
    b":authority": b"loopback",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
}


@dataclass
class Server:
    """Calls a server; `channel` stays open."""

    listening: Listening
    channel: Any  # to the stubs each call of it is generic
    port: int

    def call(self, path: str, message: bytes, **more: Any) -> Any:
        return self.channel.unary_unary(f"/{path}")(message, **more)

    async def ask(self, name: str, /, **fields: Any) -> Message:
        """The answer of a call of the protocol."""
        message = getattr(pb, f"{name}Request")(**fields).SerializeToString()
        answer: Message = getattr(pb, f"{name}Response").FromString(
            await self.call(f"{INFERENCE}/{name}", message)
        )
        return answer

    async def post(
        self, path: str, content: bytes | dict[str, Any], **headers: str
    ) -> httpx.Response:
        """The answer to an HTTP request; a body that is no bytes is sent as JSON."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        url = f"http://127.0.0.1:{self.listening.port}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            return await client.post(path, content=body, headers=headers)

    async def infer(self, message: Message | bytes, **more: Any) -> pb.ModelInferResponse:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        answer = await self.call(f"{INFERENCE}/ModelInfer", data, **more)
        return pb.ModelInferResponse.FromString(answer)

    async def metric(self, name: str, **labels: str) -> float:
        return await self.listening.metric(name, **labels)

    async def rest(self, path: str, method: str = "GET") -> Any:
        return (await self.listening.ask(request(path, b"", method=method))).json()


@contextlib.asynccontextmanager
async def serving(models: Path, **settings: Any) -> AsyncIterator[Server]:
    port = free_port()
    async with (
        listening(models, grpc_port=port, max_body_bytes=MAX_BODY_BYTES, **settings) as http,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield Server(http, channel, port)


def row(
    octets: bytes | None = OCTETS, model: str = "double", **changes: Any
) -> pb.ModelInferRequest:
    """A request of one item; None: without raw contents."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], **changes}
    raw = [] if octets is None else [octets]
    inputs = [pb.ModelInferRequest.InferInputTensor(**tensor)]
    return pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw)


async def refused(
    code: grpc.StatusCode, asked: Awaitable[object], *words: str
) -> Mapping[str, str | bytes]:
    """The trailing metadata of a call that fails in this way."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked
    found = caught.value
    assert found.code() == code, found
    for word in words:
        assert word in (found.details() or ""), found
    return dict(found.trailing_metadata() or ())


def numbers(answer: pb.ModelInferResponse) -> list[float]:
    (octets,) = answer.raw_output_contents
    found: list[float] = np.frombuffer(octets, "<f4").tolist()
    return found


class RawConnection:
    """HTTP/2 by hand, for what no client of gRPC sends.

    Args:
        reader: of the connection.
        writer: of the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._stream = -1

    @classmethod
    async def open(cls, port: int, window: int = 65_535) -> RawConnection:
        """Connect; of the answer of a call only `window` bytes may come."""
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        made._writer.write(PREFACE)
        made.frame(4, 0, 0, struct.pack(">HI", 4, window))
        return made

    def call(self, head: Mapping[bytes, bytes], message: bytes = b"", packed: bytes = b"") -> int:
        """Send a call with these fields in its head, and packed ones; returns its stream."""
        self._stream += 2
        fields = b"".join(
            b"\x00%c%b%c%b" % (len(name), name, len(value), value)
            for name, value in (HEAD | dict(head)).items()
        )
        self.frame(1, 4, self._stream, fields + packed)
        self.frame(0, 1, self._stream, struct.pack(">BI", 0, len(message)) + message)
        return self._stream

    async def status(self) -> bytes:
        """What comes until a call has ended, or the connection."""
        got = b""
        async with asyncio.timeout(60):
            while b"grpc-status" not in got and (piece := await self._reader.read(65536)):
                got += piece
        return got

    async def ended(self) -> None:
        """Return when the server has closed the connection."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                while await self._reader.read(65536):
                    pass
        await self.close()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Send a frame."""
        size = struct.pack(">I", len(payload))[1:]
        self._writer.write(size + struct.pack(">BBI", kind, flags, stream) + payload)
