"""The key of a load test: shown to the server, told to nobody else."""

from __future__ import annotations

import pytest

from loadtests.errors import UsageError
from loadtests.traffic.credentials import VARIABLE, with_key

HEADERS = {"Content-Type": "application/json"}


@pytest.mark.parametrize("empty", [None, "", " \n"])
def test_missing_key_adds_no_header(monkeypatch: pytest.MonkeyPatch, empty: str | None) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if empty is not None:
        monkeypatch.setenv(VARIABLE, empty)
    assert with_key(HEADERS) == HEADERS


def test_trailing_newline_is_stripped_from_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "tl_secret\n")
    assert with_key(HEADERS) == {**HEADERS, "Authorization": "Bearer tl_secret"}
    assert "Authorization" not in HEADERS


@pytest.mark.parametrize("key", ["tl_secret\nX-Evil: 1", "tl secret", "tl_secr\u00e9t", "tl_\x7f"])
def test_invalid_key_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(VARIABLE, key)
    with pytest.raises(UsageError, match="TORCHLANE_LOAD_API_KEY is not an API key") as refused:
        with_key(HEADERS)
    assert key not in str(refused.value)
