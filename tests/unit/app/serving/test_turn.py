"""One profile at a time, in one process and in several."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from app.errors import AlreadyRecording
from app.serving.turn import Turn
from app.shared_file import SharedFile


@pytest.fixture
def file() -> Iterator[SharedFile]:
    made = SharedFile.create()
    yield made
    made.close()


def test_second_worker_is_refused_until_release(file: SharedFile) -> None:
    one, other = Turn(file), Turn(file)
    for taker, refused in ((one, other), (other, one), (one, one)):
        with taker.take(time.monotonic() + 30):
            says = pytest.raises(AlreadyRecording, match="profiled already")
            with says as caught, refused.take(time.monotonic() + 1):
                pytest.fail("two have the turn")
            assert 28 < caught.value.retry_after_s <= 30


def test_single_process_has_one_turn() -> None:
    turn = Turn(None)
    with turn.take(time.monotonic()):
        with pytest.raises(AlreadyRecording) as caught, turn.take(time.monotonic()):
            pytest.fail("two have the turn")
        assert caught.value.retry_after_s == 1.0
    with turn.take(time.monotonic()):
        pass
