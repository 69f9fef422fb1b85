"""Limits without HTTP: every parser reads the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import orjson
import pytest

from loadtests.bench.limits import main, parsers


def test_all_parsers_read_the_same_numbers() -> None:
    wanted = np.round(np.random.default_rng(0).normal(0, 1, (3, 1, 4, 4)), 5)
    body = orjson.dumps({"inputs": wanted.tolist()})
    found = parsers()
    assert "orjson" in found
    for parse in found.values():
        got = parse(body).reshape(wanted.shape)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, wanted.astype(np.float32))


@pytest.mark.parametrize("kind", ["batch", "image"])
def test_it_prints_how_often_it_could_be_done(
    repository: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    assert main([kind, str(repository / "digits" / "1"), "--seconds", "0.05"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found
    assert all(per_s > 1 for per_s in found.values())
