"""What sinks of `Tracing` hear of requests and batches, on every way that a request may take."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from app.telemetry.tracing import BatchRecord, RequestTrace, Token
from tests.integration.listening import Doubles, Listening, until
from tests.integration.wire import ask_for, request

ASGI = {"expect": "100-continue"}  # such a request takes the ASGI way


class Heard:
    """A sink that keeps what it hears."""

    def __init__(self, trace_id: str = "") -> None:
        self.fields: list[Mapping[bytes, bytes]] = []
        self.requests: list[RequestTrace] = []
        self.batches: list[tuple[BatchRecord, list[RequestTrace]]] = []
        self.errors: list[BaseException | None] = []
        self.batch_errors: list[str] = []
        self.token = Token(self, trace_id, "1" * 16 if trace_id else "")

    def wants(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token | None:
        self.fields.append(fields)
        return None if b"x-leave" in fields else self.token

    def batch_ended(self, record: BatchRecord) -> None:
        self.batches.append((record, list(record.traces)))
        self.batch_errors += map(str, record.errors)

    def request_ended(self, trace: RequestTrace, token: Token) -> None:
        assert token is self.token is trace.token(self)
        self.requests.append(trace)
        self.errors.append(trace.error)


@pytest.fixture
def server(doubling: Listening) -> Listening:
    return doubling


@pytest.fixture
def heard(server: Listening) -> Heard:
    sink = Heard()
    server.service.tracing.add(sink)
    return sink


async def test_errors(server: Listening, heard: Heard) -> None:
    assert (await server.ask(ask_for(13))).status == 500
    assert (await server.ask(request(body=b"{"))).status == 422
    assert (await server.ask(request("/models/none/predict"))).status == 404
    failed, malformed, unknown = heard.requests
    (record,) = failed.batches
    assert (failed.outcome, record.fault) == ("backend_failed", "")
    assert heard.batch_errors == ["thirteen"]
    assert not record.errors  # like those of requests
    assert (malformed.outcome, malformed.batches, malformed.decoded) == ("invalid_input", [], 0)
    assert (unknown.outcome, unknown.model) == ("model_not_found", None)
    assert all(heard.errors)
    assert [each.error for each in heard.requests] == [None] * 3  # not kept longer


async def test_sinks_can_be_added_and_removed(server: Listening, heard: Heard) -> None:
    assert (await server.ask(ask_for(1, x_leave="1"))).status == 200
    assert heard.requests == []  # but its batch was told
    ((_, traces),) = heard.batches
    assert traces == []
    other = Heard("f" * 32)
    server.service.tracing.add(other)
    await server.ask(ask_for(2))
    (trace,) = other.requests
    assert trace.log_ids() == {"trace_id": "f" * 32, "span_id": "1" * 16}
    for sink in (heard, other, other):
        server.service.tracing.remove(sink)
    assert not server.service.tracing.enabled
    await server.ask(ask_for(3))
    assert (len(heard.requests), len(other.requests)) == (1, 1)


@pytest.mark.parametrize("method", ["gate", "wants", "batch_ended", "request_ended"])
async def test_a_failing_sink_does_not_affect_requests(
    server: Listening, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    sink = Heard()
    if method != "gate":
        monkeypatch.setattr(sink, method, broken)
    server.service.tracing.add(sink, broken if method == "gate" else None)  # type: ignore[arg-type]
    with capture_logs() as logs:
        for number in range(3):
            assert (await server.ask(ask_for(number))).status == 200
    assert [each["event"] for each in logs] == ["sink_failed"]
    assert not server.service.tracing.enabled


async def test_a_gate_limits_batches_to_traced_requests(
    server: Listening, doubles: Doubles
) -> None:
    sink = Heard()
    server.service.tracing.add(sink, lambda fields: b"x-leave" not in fields)
    assert (await server.ask(ask_for(1, x_leave="1"))).status == 200
    assert sink.batches == []
    doubles.hold()
    wires = [await server.connect(), await server.connect()]
    wires[0].send(ask_for(2, x_leave="1"))
    await until(lambda: bool(doubles.one.batches))
    wires[1].send(ask_for(2))  # it joins a batch that was handed over before
    await until(lambda: server.service.metrics.requests_open == 2)
    doubles.go_on()
    for wire in wires:
        assert (await wire.answer()).status == 200
    ((record, traces),) = sink.batches
    (trace,) = sink.requests
    assert traces == [trace]
    assert record.handed_over <= record.began < trace.began < record.ended
