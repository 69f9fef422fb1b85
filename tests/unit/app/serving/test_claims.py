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


def test_claims_of_the_dead_pass_to_those_that_replace_them(pair: tuple[Claims, Claims]) -> None:
    first, second = pair
    for each in pair:
        assert each.claim(MODEL, A) == A
        each.bury()  # no process lives now
    assert first.claim(MODEL, B) == A
    assert first.claim(MODEL, A) == A
    second.forget_dead("m", [])  # the first has it again
    assert second.served(MODEL) == A
    first.release(MODEL)
    assert second.served(MODEL) is None


def test_claims_of_the_dead_end_with_their_version(pair: tuple[Claims, Claims]) -> None:
    first, second = pair
    for model in (MODEL, OTHER):
        assert first.claim(model, A) == A
    first.bury()
    second.forget_dead("other", [])
    second.forget_dead("m", [MODEL.version])
    assert (second.served(MODEL), second.served(OTHER)) == (A, None)
    assert second.claim(MODEL, A) == A
    first.claim(MODEL, A)
    first.bury()
    second.release(MODEL)  # unloaded by those that live
    assert second.served(MODEL) is None
