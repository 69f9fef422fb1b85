"""Addresses: what --url may be, and that a name is looked up once."""

from __future__ import annotations

import socket

import pytest

from loadtests.errors import UsageError
from loadtests.openloop.address import Address, Unreachable, reach
from tests.unit.loadtests.openloop.servers import OK, answering


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://x:1", "must be http://HOST:PORT, not 'https://x:1': with TLS, "),
        ("http://x/prefix", "must be http://HOST:PORT, .* without the path /prefix"),
        ("127.0.0.1:80", "it has no scheme"),
    ],
)
def test_only_plain_http_is_accepted(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        reach(url)


def test_port_80_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(Unreachable, match=r"^cannot connect to \[::1\]:80: "):
        reach("http://[::1]/")


def test_ipv6_addresses_have_brackets() -> None:
    assert str(Address("::1", 8000)) == "[::1]:8000"
    assert Address("localhost", 8000, "::1").peer == "[::1]:8000"
    assert str(Address("localhost", 8000, "::1")) == "localhost:8000"


async def test_name_resolves_to_the_address_that_answers() -> None:
    async def answer(body: bytes) -> bytes:
        return OK

    async with answering(answer) as address:
        found = reach(f"http://localhost:{address.port}/")
    assert found == Address("localhost", address.port, "127.0.0.1")


@pytest.mark.parametrize("host", ["127.0.0.1", "a..b"])
def test_unreachable_address_is_reported(host: str, unused_tcp_port: int) -> None:
    with pytest.raises(Unreachable, match=f"cannot connect to {host}:{unused_tcp_port}: "):
        reach(f"http://{host}:{unused_tcp_port}")
