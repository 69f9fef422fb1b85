"""The state of a source: why it has no models."""

from __future__ import annotations

import pytest

from app.sources.state import State
from models.stores.urls import StoreUrl


@pytest.mark.parametrize(
    ("url", "state", "told"),
    [
        ("s3://b/m", State(succeeded_at=1), "export` writes one with --out s3://b/m"),
        ("https://a/m", State(succeeded_at=1), "export` writes one into a folder"),
        ("s3://b", State(succeeded_at=1, ignored="m/x/1"), ", but m/x/1/manifest.json; choose"),
        ("s3://b", State(succeeded_at=1, ignored="m/v1"), "a version is a number, such as m/1"),
        ("s3://b/m/1", State(succeeded_at=1, ignored=""), ", but manifest.json; choose a folder"),
        ("s3://b", State(succeeded_at=1, problem="503"), "no models have come from s3://b: 503"),
        ("s3://b", State(), "nothing has been fetched from s3://b yet"),
    ],
)
def test_an_empty_store_says_what_to_do(url: str, state: State, told: str) -> None:
    assert told in state.why_empty(StoreUrl.parse(url))
