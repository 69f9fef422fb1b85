"""URLs of servers: all forms that mean one server are the same, all others are refused."""

from __future__ import annotations

import pytest

from loadtests.errors import UsageError
from loadtests.server_url import ServerUrl


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        (" http://127.0.0.1:8000//\n", "http://127.0.0.1:8000"),
        ("HTTP://localhost", "http://localhost"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("https://models.example/team/", "https://models.example/team"),
    ],
)
def test_one_server_has_one_form(text: str, url: str) -> None:
    parsed = ServerUrl.parse(text)
    assert str(parsed) == url
    assert ServerUrl.parse(url) == parsed


def test_the_parts_are_for_a_connection() -> None:
    parsed = ServerUrl.parse("https://[::1]:8443/team/a/")
    assert (parsed.scheme, parsed.host, parsed.port) == ("https", "::1", 8443)
    assert parsed.prefix == "/team/a"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "scheme must be http or https"),
        ("127.0.0.1:8000", r"it has no scheme; try http://127\.0\.0\.1:8000$"),
        ("localhost:8000/", "it has no scheme; try http://localhost:8000/$"),
        ("//localhost:8000", "it has no scheme; try http://localhost:8000$"),
        ("ftp://127.0.0.1", "scheme must be http or https"),
        ("http://", "it has no host"),
        ("http://:8000", "it has no host"),
        ("http://x:0", "it has no port from 1"),
        ("http://x:http", "Port could not be cast"),
        ("http://x:99999", "Port out of range"),
        ("http://[::1", "Invalid IPv6"),
        ("http://x?a=b", "must end before"),
        ("http://x/#watch", "must end before"),
    ],
)
def test_other_texts_are_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        ServerUrl.parse(text)
    assert f"{text!r} is not an address like http://127.0.0.1:8000: " in str(refused.value)


@pytest.mark.parametrize("text", ["http://ann:secret@x:1", "ann:secret@x:1", "http://secret@[::1"])
def test_user_and_password_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UsageError, match="must not have a user and password") as refused:
        ServerUrl.parse(text)
    assert "secret" not in str(refused.value)
