"""Floods the gRPC port of a server, and measures how long other callers wait meanwhile.

`python -m tests.chaos.grpc_floods MODELS [--workers 2] [--seconds 20] [KIND ...]`
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import selectors
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from app.api.oip.grpc.protos import inference_pb2 as pb
from tests.e2e.server import Server, free_port, running
from tests.integration.grpc_calls import HEAD, INFERENCE, LARGE_FIELD, PREFACE, REFERENCE

INFER = f"/{INFERENCE}/ModelInfer".encode()
PAUSE_S = 0.01  # between two calls of a measured client
ATTACKERS = 2  # processes
NICENESS = 10  # of the attackers, which would have a machine of their own


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    size = struct.pack(">I", len(payload))[1:]
    return size + struct.pack(">BBI", kind, flags, stream) + payload


def head(path: bytes) -> bytes:
    """The fields of a call, without compression."""
    fields = HEAD | {b":path": path}
    pairs = ((bytes([len(name)]) + name, bytes([len(of)]) + of) for name, of in fields.items())
    return b"".join(b"\x00" + name + value for name, value in pairs)


Burst = Callable[[int], bytes]  # from a stream that is free
LIVE, UNKNOWN = head(f"/{INFERENCE}/ServerLive".encode()), head(b"/none")
EMPTY = bytes(5)  # a message
BURSTS: Mapping[str, Burst] = {
    "calls": lambda at: frame(1, 4, at, LIVE) + frame(0, 1, at, EMPTY),
    "unknown": lambda at: frame(1, 5, at, UNKNOWN),
    "malformed": lambda at: frame(1, 4, at, head(INFER)) + frame(0, 1, at, b"\0\0\0\0\3abc"),
    "reset": lambda at: frame(1, 4, at, head(INFER)) + frame(3, 0, at, bytes(4)),
    "references": lambda at: frame(1, 4, at, LIVE + REFERENCE * 4000),
    "pings": lambda _: frame(6, 0, 0, bytes(8)) * 20,
    "settings": lambda _: frame(4, 0, 0) * 20,
    "windows": lambda _: frame(8, 0, 0, struct.pack(">I", 1)) * 20,
    "priorities": lambda at: frame(2, 0, at, bytes(5)) * 20,
    "empty-data": lambda at: (
        (frame(1, 4, at, head(INFER)) if at == 3 else b"") + frame(0, 0, 3) * 20
    ),
    "endless-head": lambda at: (frame(1, 0, 3) if at == 3 else b"") + frame(9, 0, 3) * 20,
}
KINDS = ("none", *BURSTS, "connections")


def connected(port: int) -> socket.socket:
    """A connection that has begun; it never acknowledges the server's SETTINGS."""
    made = socket.create_connection(("127.0.0.1", port), timeout=5)
    made.sendall(PREFACE + frame(4, 0, 0) + frame(1, 5, 1, LIVE + LARGE_FIELD))
    return made


def come_and_go(port: int, seconds: float) -> None:
    """Open and close connections."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            connected(port).close()
        except OSError:
            time.sleep(PAUSE_S)


def flood(kind: str, port: int, connections: int, seconds: float) -> None:
    """Send as fast as the server reads."""
    os.nice(NICENESS)
    if kind == "connections":
        come_and_go(port, seconds)
        return
    end, burst = time.monotonic() + seconds, BURSTS[kind]
    chosen = selectors.DefaultSelector()

    def begin() -> None:
        try:
            made = connected(port)
        except OSError:
            return
        made.setblocking(False)
        chosen.register(made, selectors.EVENT_READ | selectors.EVENT_WRITE, [b"", 3])

    while time.monotonic() < end:
        for _ in range(connections - len(chosen.get_map())):
            begin()
        for key, ready in chosen.select(0.1):
            peer, state = key.fileobj, key.data
            assert isinstance(peer, socket.socket)
            try:
                if ready & selectors.EVENT_READ and not peer.recv(1 << 18):
                    raise ConnectionError
                if ready & selectors.EVENT_WRITE:
                    if not state[0]:
                        streams = range(state[1], state[1] + 64, 2)
                        state[0], state[1] = b"".join(map(burst, streams)), streams.stop
                    state[0] = state[0][peer.send(state[0]) :]
            except BlockingIOError:
                continue
            except OSError:
                chosen.unregister(peer)
                peer.close()


def over_http(port: int, path: str, body: bytes | None) -> Callable[[], bool]:
    """A call over HTTP; whether it was answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask() -> bool:
        headers = {"Content-Type": "image/png"} if body else {}
        connection.request("POST" if body else "GET", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200

    return ask


def over_grpc(port: int) -> Callable[[], bool]:
    """A prediction of a new random picture over gRPC; whether it was answered."""
    channel: Any = grpc.insecure_channel(f"127.0.0.1:{port}")  # to the stubs its calls are generic
    infer = channel.unary_unary(INFER.decode())
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="image", datatype="FP32", shape=[1, 1, 32, 32]
    )
    random = np.random.default_rng()

    def ask() -> bool:
        raw = random.random((1, 1, 32, 32), np.float32).tobytes()
        message = pb.ModelInferRequest(inputs=[tensor], raw_input_contents=[raw])
        message.model_name = "digits"
        try:
            infer(message.SerializeToString(), timeout=30)
        except grpc.RpcError:
            return False
        return True

    return ask


def connecting(port: int) -> Callable[[], bool]:
    """A new connection; whether the server has sent its SETTINGS."""

    def ask() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as made:
                made.sendall(PREFACE + frame(4, 0, 0))
                return bool(made.recv(1))
        except OSError:
            return False

    return ask


class Measured(threading.Thread):
    """A caller with little to ask."""

    def __init__(self, name: str, ask: Callable[[], bool], seconds: float) -> None:
        super().__init__(name=name)
        self._ask = ask
        self._end = time.monotonic() + seconds
        self.took_s: list[float] = []
        self.failed = 0

    def run(self) -> None:
        while (now := time.monotonic()) < self._end:
            self.failed += not self._ask()
            self.took_s.append(time.monotonic() - now)
            time.sleep(PAUSE_S)

    def __str__(self) -> str:
        p50, p99 = np.quantile(self.took_s, (0.5, 0.99)) * 1000
        return f"{self.name} p50 {p50:.1f} p99 {p99:.0f} ms, {self.failed} failed"


def measure(
    kind: str, server: Server, grpc_port: int, seconds: float, picture: bytes
) -> Iterator[str]:
    """What other callers see during a flood by 60 connections."""
    # Not forked from this process, whose gRPC threads a fork would wait for, sometimes for ever.
    processes = multiprocessing.get_context("forkserver")
    arguments = (kind, grpc_port, 60 // ATTACKERS, seconds)
    attackers = [processes.Process(target=flood, args=arguments) for _ in range(ATTACKERS)]
    for attacker in attackers if kind != "none" else []:
        attacker.start()
    callers = [
        Measured("/health/live", over_http(server.port, "/health/live", None), seconds),
        Measured("/predict", over_http(server.port, "/predict", picture), seconds),
        Measured("gRPC", over_grpc(grpc_port), seconds),
        Measured("connecting", connecting(grpc_port), seconds),
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
        yield str(caller)
    for attacker in attackers if kind != "none" else []:
        attacker.join()
    yield f"{server.metric('process_resident_memory_bytes') / 1e6:.0f} MB"


def main() -> None:
    """Run the floods one after the other on one server; then stop it during the last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, KINDS], default=KINDS, metavar="KIND")
    parser.add_argument("--workers", default="1")
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    picture = Path("docs/three.png").read_bytes()
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(
            options.models, Path(folder) / "log", grpc_port=str(port), workers=options.workers
        ) as server,
    ):
        for kind in options.kinds:
            found = measure(kind, server, port, options.seconds, picture)
            sys.stdout.write(f"{kind}: {'; '.join(found)}\n")
            sys.stdout.flush()
        server.signal()
        sys.stdout.write(f"exit code {server.exit_code()}\n")


if __name__ == "__main__":
    main()
