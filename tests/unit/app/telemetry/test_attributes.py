"""What spans say of a request."""

from __future__ import annotations

import pytest

from app.telemetry.attributes import error_type_of, of_head
from app.telemetry.tracing import RequestTrace


@pytest.mark.parametrize(
    ("host", "address", "port"),
    [
        (b"there:8000", "there", 8000),
        (b"there", "there", None),
        (b"[::1]:8000", "::1", 8000),
        (b"[::1]", "::1", None),
        (b"there:65536", "there:65536", None),
        (b"there:" + b"9" * 250, "there:" + "9" * 250, None),
        (b"there:\xb2", "there:\xb2", None),
        (b":80", ":80", None),
        (b"", None, None),
    ],
)
def test_host_header_gives_address_and_valid_port(
    host: bytes, address: str | None, port: int | None
) -> None:
    trace = RequestTrace("GET", "/", "", b"abc", 1.0)
    found = of_head(trace, host, None)
    assert (found.get("server.address"), found.get("server.port")) == (address, port)


@pytest.mark.parametrize(
    ("status", "rpc_status", "is_error"),
    [
        (200, "OK", False),
        (429, "RESOURCE_EXHAUSTED", False),
        (503, "RESOURCE_EXHAUSTED", False),  # the server is busy: with gRPC no error of it
        (503, "UNAVAILABLE", True),
        (504, "DEADLINE_EXCEEDED", True),
        (501, "UNIMPLEMENTED", True),
        (500, "INTERNAL", True),
        (404, "NOT_FOUND", False),
        (499, "UNAVAILABLE", False),  # the client had gone
    ],
)
def test_status_determines_the_error_type(status: int, rpc_status: str, *, is_error: bool) -> None:
    by_http, by_grpc = (RequestTrace(method, "/", "", b"abc", 1.0) for method in ("GET", ""))
    by_grpc.rpc_status = rpc_status
    for trace in (by_http, by_grpc):
        trace.end(2.0, status, "code")
    assert error_type_of(by_http) == ("code" if status >= 500 else "")
    assert error_type_of(by_grpc) == (rpc_status if is_error else "")
