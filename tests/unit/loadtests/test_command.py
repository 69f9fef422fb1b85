"""The command line of the load tests."""

from __future__ import annotations

import pytest

from loadtests.__main__ import main

RUN = ["run", "--rate", "1", "--url", "http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (RUN, "load needs packages that are not installed (rich)"),
        (["locust", "--headless"], "load locust needs packages that are not installed (locust)"),
    ],
)
def test_missing_extra_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.setattr("models.system.extras.find_spec", lambda name: None)
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"torchlane: {told}: pip install 'torchlane[loadtests]'\n"


def test_failure_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUN) == 1
    error = capsys.readouterr().err
    assert error.startswith("torchlane: ")
    assert error.count("\n") == 1
