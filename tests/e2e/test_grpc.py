"""gRPC in real processes: start, drain, and several workers."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from app.api.oip.grpc.protos import inference_pb2 as pb
from tests.e2e.server import free_port, running, start_process
from tests.integration.grpc_calls import LARGE_FIELD, REFERENCE, RawConnection

SLOW = "tests.e2e.slow_app"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STATUS = health_pb2.HealthCheckResponse


def insecure_channel(*arguments: Any) -> Any:
    """To the stubs each of its calls is generic."""
    return grpc.insecure_channel(*arguments)


def row(first: float) -> bytes:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 2])
    raw = np.array([first, 0], "<f4").tobytes()
    message = pb.ModelInferRequest(model_name="double", inputs=[tensor], raw_input_contents=[raw])
    return message.SerializeToString()


def doubled(answer: bytes) -> float:
    (raw,) = pb.ModelInferResponse.FromString(answer).raw_output_contents
    return float(np.frombuffer(raw, "<f4")[0])


def test_a_drain_answers_accepted_calls_and_rejects_others(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("SLOW_UNTIL", str(gate))
    port = free_port()
    log = tmp_path / "log"
    with (
        running(models, log, SLOW, grpc_port=str(port)) as server,
        insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        infer = channel.unary_unary(INFER)
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=30)
        assert STATUS.FromString(next(watch)).status == STATUS.SERVING
        accepted = infer.future(row(3), timeout=30)
        server.wait_for_metric("torchlane_cache_lookups_total", lambda value: value > 0)
        server.signal(signal.SIGTERM)
        assert STATUS.FromString(next(watch)).status == STATUS.NOT_SERVING
        with pytest.raises(grpc.RpcError) as refused:
            infer(row(4), timeout=30)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in str(refused.value.details())
        gate.touch()
        assert doubled(accepted.result()) == 6
        with pytest.raises(grpc.RpcError):
            next(watch)
        assert server.exit_code() == 0
    assert "Traceback" not in log.read_text()


def test_several_workers_share_the_connections(models: Path, tmp_path: Path) -> None:
    """Each connection goes to the less connected one."""
    port, log = free_port(), tmp_path / "log"
    options = [("grpc.use_local_subchannel_pool", 1)]
    ids = set()
    with running(models, log, grpc_port=str(port), workers="2") as server:
        with contextlib.ExitStack() as open_channels:  # a closed one may count for a while
            for number in range(6):
                channel = insecure_channel(f"127.0.0.1:{port}", options)
                open_channels.enter_context(channel)
                answer, call = channel.unary_unary(INFER).with_call(row(number), timeout=30)
                assert doubled(answer) == 2 * number
                ids.add(str(dict(call.trailing_metadata())["x-request-id"])[:8])
        assert len(ids) == 2  # they begin with a number of the process
        server.signal()
        assert server.exit_code() == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.soak
def test_servers_that_start_together_never_share_a_port(models: Path, tmp_path: Path) -> None:
    shared, logs = str(free_port()), [tmp_path / f"log-{number}" for number in range(2)]
    settings = {"grpc_port": shared, "model_dir": str(models), "workers": "2"}
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(start_process(log, **settings, port=str(free_port())))
            for log in logs
        ]
        deadline = time.monotonic() + 60
        while all(each.poll() is None for each in servers) and time.monotonic() < deadline:
            time.sleep(0.05)
        (ended,) = [number for number, each in enumerate(servers) if each.poll() is not None]
        assert servers[ended].wait(5) == 1
        assert f"is port {shared} in use? --grpc-port" in logs[ended].read_text()


def test_references_to_a_large_field_take_no_memory(models: Path, tmp_path: Path) -> None:
    """600 calls of 4 KB, which stand for 14 MB each; their client reads nothing."""

    async def attack() -> None:
        raw = await RawConnection.open(port)
        raw.call({}, packed=LARGE_FIELD)
        for _ in range(600):
            raw.call({}, packed=REFERENCE * 4000)
        await raw.close()

    port = free_port()
    with running(models, tmp_path / "log", grpc_port=str(port)) as server:
        before = server.metric("process_resident_memory_bytes")
        asyncio.run(attack())
        with insecure_channel(f"127.0.0.1:{port}") as channel:
            assert doubled(channel.unary_unary(INFER)(row(3), timeout=30)) == 6
        assert server.metric("process_resident_memory_bytes") - before < 100e6


def flood(port: int) -> None:
    """Send calls of an unknown method over 20 connections, as fast as the server takes them."""

    async def send() -> None:
        raws = [await RawConnection.open(port) for _ in range(20)]
        for _ in range(100):
            for raw in raws:
                for _ in range(20):
                    raw.call({b":path": b"/none"})
            await asyncio.sleep(0)
        await asyncio.sleep(60)  # they stay open

    asyncio.run(send())


@pytest.mark.soak
def test_a_flood_of_calls_ends_nothing(models: Path, tmp_path: Path) -> None:
    """Others are answered during it, and a stop is in time."""
    port = free_port()
    with running(models, tmp_path / "log", grpc_port=str(port), workers="2") as server:
        flooding = multiprocessing.get_context("fork").Process(target=flood, args=(port,))
        flooding.start()
        try:
            for number in range(5):
                with insecure_channel(f"127.0.0.1:{port}") as channel:
                    answer = channel.unary_unary(INFER)(row(number), timeout=60)
                    assert doubled(answer) == 2 * number
            server.signal()
            assert server.exit_code() == 0
        finally:
            flooding.kill()
            flooding.join()
    assert "Traceback" not in (tmp_path / "log").read_text()
