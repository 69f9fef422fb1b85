"""The command line of the load tests."""

from __future__ import annotations

import pytest

from loadtests.__main__ import main

RUN = ["run", "--rate", "1", "--url", "http://127.0.0.1:1"]


def test_missing_extra_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.extras.find_spec", lambda name: None)
    assert main(RUN) == 2
    assert capsys.readouterr().err == (
        "torchlane: load needs packages that are not installed (rich): "
        "pip install 'torchlane[loadtests]'\n"
    )


def test_failure_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUN) == 1
    error = capsys.readouterr().err
    assert error.startswith("torchlane: ")
    assert error.count("\n") == 1
