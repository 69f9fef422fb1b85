"""Traces on the wire: to a receiver that others wrote, to one that hangs and to none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.otlp import receiving
from tests.e2e.server import PLAIN, Server, free_port, running, start_process

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARTS = {"decode", "queue", "forward", "encode"}


def ask(server: Server, number: float, flag: str = "01") -> httpx.Response:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flag}"}
    body = {"input": [number, 2]}
    return httpx.post(f"{server.url}/predict", json=body, headers=headers, verify=PLAIN)


@pytest.mark.parametrize(("protocol", "workers"), [("grpc", "1"), ("http/protobuf", "2")])
def test_spans_arrive(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, workers: str
) -> None:
    with receiving(tmp_path) as receiver:
        port = receiver.grpc_port if protocol == "grpc" else receiver.http_port
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with running(models, tmp_path / "log", workers=workers) as server:
            for number in range(4):
                assert ask(server, number).status_code == 200
            assert ask(server, 9, flag="00").status_code == 200
            wrong = {"traceparent": "0" * 600, "tracestate": "=" * 600}
            assert (
                httpx.get(f"{server.url}/metrics", headers=wrong, verify=PLAIN).status_code == 200
            )
            body = {"input": [9, 2]}
            url = f"{server.url}/predict"
            assert httpx.post(url, json=body, headers=wrong, verify=PLAIN).status_code == 200
            assert not any("header" in line for line in server.log.splitlines())
            server.signal()
            assert server.exit_code() == 0
        # The answer of item 9 may be cached: three spans, or six.
        found = receiver.wait_for(lambda found: len(found) in {4 * 6 + 3, 5 * 6})
    requests = [each for each in found if each.name == "POST /predict" and each.parent_id]
    assert [(each.trace_id, each.parent_id) for each in requests] == [(TRACE, PARENT)] * 4
    by_link = {each.links[0]: each for each in found if each.name == "batch"}
    for request in requests:
        below = {each.name: each for each in found if each.parent_id == request.span_id}
        assert set(below) == PARTS
        batch = by_link[request.span_id]
        assert (batch.parent_id, batch.trace_id == TRACE) == ("", False)
        assert below["forward"].links == [batch.span_id]
    resources = [each.resource for each in found]
    assert {each["service.name"] for each in resources} == {"torchlane"}
    assert {each["deployment.environment.name"] for each in resources} == {"test"}
    assert all(("torchlane.worker" in each) == (workers == "2") for each in resources)


@contextlib.contextmanager
def hanging() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()
    thread.join(5)


@pytest.mark.parametrize(
    ("protocol", "receiver"),
    [("grpc", "hangs"), ("http/protobuf", "is gone")],
)
def test_an_unresponsive_receiver_does_not_delay_the_stop(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, receiver: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")  # how long an exporter would try
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "32")
    with hanging() if receiver == "hangs" else contextlib.nullcontext(free_port()) as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        with running(models, tmp_path / "log", drain_s="2") as server:
            with httpx.Client(base_url=server.url, verify=PLAIN) as client:
                for number in range(100):
                    body = {"input": [number, 2]}
                    assert client.post("/predict", json=body).status_code == 200
            time.sleep(0.2)
            server.signal()
            assert server.exit_code() == 0
            assert len(server.log.splitlines()) < 20, server.log


def test_startup_names_an_invalid_variable(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "sometimes")
    log = tmp_path / "log"
    with start_process(log, model_dir=str(models), workers="2") as process:
        assert process.wait(60) == 2
    assert log.read_text().startswith("torchlane: OTEL_TRACES_SAMPLER='sometimes' cannot be used: ")
