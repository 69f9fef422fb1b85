"""A signal interrupts a run, whatever the run waits for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.bulk.blocks import Block
from app.bulk.pipeline import LocalStages


def test_a_signal_that_another_thread_gets_interrupts_the_wait_for_rows() -> None:
    """Python only notes such a signal; so it does with one just before the wait."""
    over = threading.Event()

    def blocks() -> Iterator[Block]:
        assert not over.wait(0.5)  # the main thread waits for the first block by now
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        over.wait()
        yield from ()

    model: Any = SimpleNamespace(devices=())
    answers: Any = None
    stages = LocalStages(model, answers)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(stages.run(0, blocks))
    finally:
        over.set()
        assert stages.close()
