"""Bodies that name the model."""

from __future__ import annotations

import pytest

from app.api.text.body import split


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("minilm", ("minilm", None)),
        ("minilm/3", ("minilm", "3")),
        ("a/b", ("a/b", None)),
        ("/3", ("/3", None)),
        ("minilm/", ("minilm/", None)),
    ],
)
def test_version_follows_the_model_name(model: str, expected: tuple[str, str | None]) -> None:
    assert split(model) == expected
