"""Asks by gRPC, and tells the answer as if it had come by HTTP: then it is judged alike."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import numpy as np

from app.api.oip.grpc.protos import inference_pb2 as pb
from tests.chaos.connection import ChaosAnswer, Cut, Unanswered
from tests.chaos.request import JSON, JSON_LENGTH, OCTETS, Request

INFER = "/inference.GRPCInferenceService/ModelInfer"
STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


# gRPC itself does this where it is told to. A balancer cannot: UNAVAILABLE has no HTTP status.
AGAIN = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.3s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}

LOOK_S = 0.2
BACKOFFS = ("initial", "max")  # the least is also the time that a connection may take


class GrpcConversation:
    """One client's channel.

    Args:
        port: of the server.
        patience_s: longer than any server may take to answer.
        again: ask again where a server is not available.
    """

    def __init__(self, port: int, patience_s: float, *, again: bool = False) -> None:
        self._options: list[tuple[str, int | str]] = [("grpc.use_local_subchannel_pool", 1)]
        # By default, a refused connection fails calls long after its reason has gone.
        self._options += [(f"grpc.{each}_reconnect_backoff_ms", 100) for each in BACKOFFS]
        self._options.append(("grpc.enable_retries", int(again)))
        if again:
            self._options.append(("grpc.service_config", json.dumps(AGAIN)))
        self._address = f"127.0.0.1:{port}"
        self._patience_s = patience_s
        self._channel: grpc.aio.Channel | None = None

    async def connect(self, is_stopped: Callable[[], bool]) -> None:
        """Have a connection: a request that never left is owed no answer.

        Raises:
            ConnectionError: if there is none, because the server was told to stop or for too long.
        """
        if self._channel is None:
            # One of its own: channels share connections otherwise.
            self._channel = grpc.aio.insecure_channel(self._address, self._options)
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return await asyncio.wait_for(self._channel.channel_ready(), LOOK_S)
            except TimeoutError as error:
                if is_stopped() or time.monotonic() > until:
                    raise ConnectionError("no connection by gRPC") from error

    async def ask(self, request: Request) -> ChaosAnswer:
        """The answer to an infer request.

        Raises:
            Cut: the connection ended without an answer.
            Unanswered: none came for longer than any server may take.
        """
        if self._channel is None:
            raise RuntimeError("a bug: it is not connected")
        infer: Any = self._channel.unary_unary(INFER)  # the stubs make each call generic
        call = infer(
            _message(request),
            metadata=(("x-request-id", request.id),),
            timeout=self._patience_s,
        )
        try:
            answer = pb.ModelInferResponse.FromString(await call)
        except grpc.aio.AioRpcError as error:
            return _refusal(error)
        named = {str(key): str(value) for key, value in await call.trailing_metadata() or ()}
        (output,) = answer.outputs
        head = json.dumps(
            {
                "model_name": answer.model_name,
                "model_version": answer.model_version,
                "outputs": [{"name": output.name, "shape": list(output.shape)}],
            }
        ).encode()
        headers = {
            **{"content-type": OCTETS, JSON_LENGTH.lower(): str(len(head))},
            "x-request-id": named.get("x-request-id", ""),
        }
        return ChaosAnswer(200, headers, head + answer.raw_output_contents[0])

    async def end(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await self._channel.close()


def _message(request: Request) -> bytes:
    values = np.array([item.values() for item in request.items], "<f4")
    version = "" if request.version is None else str(request.version)
    message = pb.ModelInferRequest(model_name=request.model, model_version=version)
    message.inputs.add(name="x", datatype="FP32", shape=values.shape)
    message.raw_input_contents.append(values.tobytes())
    return message.SerializeToString()


def _refusal(error: grpc.aio.AioRpcError) -> ChaosAnswer:
    told = {str(key): str(value) for key, value in error.trailing_metadata() or ()}
    if "x-request-id" not in told:  # it is not the server that says so
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise Unanswered("nothing came by gRPC")
        raise Cut(f"{error.code()}: {error.details()}")
    headers = {"content-type": JSON, "x-request-id": told["x-request-id"]}
    if "retry-after-ms" in told:
        headers["retry-after"] = str(max(1, int(told["retry-after-ms"]) // 1000))
    body = json.dumps({"error": error.details()}).encode()
    status = STATUSES.get(error.code(), 500)
    if status == 503 and "retry-after" not in headers:
        headers["connection"] = "close"  # shutting down: it takes no more calls
    return ChaosAnswer(status, headers, body)
