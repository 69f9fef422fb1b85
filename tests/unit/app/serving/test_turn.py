"""One profile at a time, in one process and in several."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.errors import AlreadyRecording
from app.serving.turn import Turn


def test_second_worker_is_refused_until_release(tmp_path: Path) -> None:
    one, other = Turn(tmp_path), Turn(tmp_path)
    for taker, refused in ((one, other), (other, one), (one, one)):
        with taker.take(time.monotonic() + 30):
            says = pytest.raises(AlreadyRecording, match="profiled already")
            with says as caught, refused.take(time.monotonic() + 1):
                pytest.fail("two have the turn")
            assert 28 < caught.value.retry_after_s <= 30


def test_failed_worker_releases_the_turn(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Turn(tmp_path).take(time.monotonic() + 30):
        raise ZeroDivisionError
    with Turn(tmp_path).take(time.monotonic()):
        pass


def test_single_process_has_one_turn(tmp_path: Path) -> None:
    turn = Turn(None)
    with turn.take(time.monotonic()):
        with pytest.raises(AlreadyRecording) as caught, turn.take(time.monotonic()):
            pytest.fail("two have the turn")
        assert caught.value.retry_after_s == 1.0
    with turn.take(time.monotonic()):
        pass
