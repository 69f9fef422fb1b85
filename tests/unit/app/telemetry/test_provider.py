"""What all spans of a process have in common."""

from __future__ import annotations

import pytest

from app.telemetry.provider import resource_of


@pytest.mark.parametrize(
    ("given", "name", "version"),
    [
        ("", "torchlane", "1.2"),
        ("service.version=mine", "torchlane", "mine"),
        ("service.name=digits", "digits", "1.2"),
        ("service.name=digits,service.version=mine", "digits", "mine"),
    ],
)
def test_the_variables_win(
    monkeypatch: pytest.MonkeyPatch, given: str, name: str, version: str
) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", given)
    found = resource_of("1.2", 3).attributes
    assert (found["service.name"], found["service.version"]) == (name, version)
    assert found["torchlane.worker"] == 3
