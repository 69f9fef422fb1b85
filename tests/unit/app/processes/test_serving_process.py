"""What is frozen for the collector is freed all the same when a model is retired."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from app.processes.serving_process import calm_gc, give_memory_back


class Part:
    """Of a cycle, as hooks and modules of a model are."""

    whole: Part | None = None


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)


def test_retired_model_is_freed_after_gc_freeze() -> None:
    part = Part()
    part.whole = part
    there = weakref.ref(part)
    calm_gc()
    del part
    gc.collect()
    assert there() is not None
    give_memory_back()
    assert there() is None
