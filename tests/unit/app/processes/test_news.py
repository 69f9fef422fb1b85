"""Events of several workers, which the parent logs once each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import pytest
from structlog.testing import capture_logs

from app.processes.news import MISTAKE, MOST_BYTES, News, pass_on

LOADED = {"event": "model_loaded", "model": "digits/1"}
FAILED = {"event": "model_not_loaded", "model": "bad/1", "problem": "its file is broken"}


@contextlib.contextmanager
def news(workers: int = 2, late: frozenset[int] = frozenset()) -> Iterator[News]:
    channel = News(workers, late.__contains__)
    try:
        yield channel
    finally:
        channel.close()


def logged(channel: News, *messages: tuple[int, str, Mapping[str, object]]) -> list[str]:
    """The events that are logged if these workers pass these on."""
    for worker, level, event in messages:
        assert pass_on(channel.writing.fileno(), worker, level, event)
    with capture_logs() as logs:
        channel.read()
    return [f"{log['log_level']} {log['event']} {log['model']}" for log in logs]


def test_what_every_worker_has_is_logged_once() -> None:
    with news() as channel:
        first = {**LOADED, "seconds": 0.3}, {**LOADED, "seconds": 0.4}
        told = logged(channel, (0, "info", first[0]), (1, "info", first[1]), (1, "error", FAILED))
        assert told == ["info model_loaded digits/1", "error model_not_loaded bad/1"]
        assert logged(channel, (0, "error", FAILED)) == []


def test_what_a_user_did_wrong_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with news() as channel:
        wrong = {"problem": "TORCHLANE_MODELS_FILE=nope: No such file"}
        assert logged(channel, (0, MISTAKE, wrong), (1, MISTAKE, wrong)) == []
    assert capsys.readouterr().err == f"torchlane: {wrong['problem']}\n"


def test_a_worker_that_replaces_another_repeats_nothing_but_errors() -> None:
    with news(late=frozenset({1})) as channel:
        told = logged(channel, (1, "info", LOADED), (1, "error", FAILED))
        assert told == ["error model_not_loaded bad/1"]


def test_a_worker_keeps_what_its_parent_cannot_take() -> None:
    with news() as channel:
        descriptor = channel.writing.fileno()
        assert not pass_on(descriptor, 0, "error", {**FAILED, "problem": "x" * MOST_BYTES})
        while pass_on(descriptor, 0, "info", LOADED):
            pass
        with capture_logs() as logs:
            channel.read()
        assert {log["event"] for log in logs} == {"model_loaded"}  # each of them whole
        assert pass_on(descriptor, 0, "info", LOADED)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_line_may_arrive_in_parts(parts: int) -> None:
    line = b'[0, "info", {"event": "model_loaded", "model": "a/1"}]\n'
    with news() as channel, capture_logs() as logs:
        size = -(-len(line) // parts)
        for at in range(0, len(line), size):
            os.write(channel.writing.fileno(), line[at : at + size])
            channel.read()
        assert [log["model"] for log in logs] == ["a/1"]
