"""Claims: which digests the processes of a server serve. Two objects are like two processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.serving.claims import Claims
from app.shared_file import SharedFile
from app.types import ModelId

MODEL, OTHER = ModelId("m", 1), ModelId("m", 11)
A, B = "a" * 64, "b" * 64


@pytest.fixture
def pair() -> Iterator[tuple[Claims, Claims]]:
    file = SharedFile.create()
    yield Claims(file, 0), Claims(file, 1)
    file.close()


def test_all_processes_serve_the_first_digest(pair: tuple[Claims, Claims]) -> None:
    first, second = pair
    assert first.served(MODEL) is None
    assert first.claim(MODEL, A) == A
    assert second.claim(MODEL, B) == A
    assert second.claim(MODEL, A) == A
    assert (first.served(MODEL), second.served(MODEL)) == (A, A)
    assert second.claim(OTHER, B) == B


def test_another_digest_may_come_after_the_last_release(pair: tuple[Claims, Claims]) -> None:
    first, second = pair
    for each in pair:
        assert each.claim(MODEL, A) == A
    first.release(MODEL)
    assert first.claim(MODEL, B) == A
    second.release(MODEL)
    second.release(MODEL)  # no effect
    assert first.served(MODEL) is None
    assert first.claim(MODEL, B) == B


def test_a_process_that_died_claims_nothing(pair: tuple[Claims, Claims]) -> None:
    first, second = pair
    for each in pair:
        assert each.claim(MODEL, A) == A
    assert first.claim(OTHER, A) == A
    first.release_all()
    assert (second.served(MODEL), second.served(OTHER)) == (A, None)
