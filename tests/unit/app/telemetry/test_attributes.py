"""What spans say of a request's head."""

from __future__ import annotations

import pytest

from app.telemetry.attributes import of_head
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
def test_a_host_is_an_address_and_a_port_that_there_can_be(
    host: bytes, address: str | None, port: int | None
) -> None:
    trace = RequestTrace("GET", "/", "", b"abc", 1.0)
    found = of_head(trace, host, None)
    assert (found.get("server.address"), found.get("server.port")) == (address, port)
