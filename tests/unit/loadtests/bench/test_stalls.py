"""What a core takes away from a process that needs all of it."""

from __future__ import annotations

import os

import pytest

from loadtests.bench.servers import Cores
from loadtests.bench.stalls import share_stalled


def test_stalled_share_is_a_fraction() -> None:
    assert 0 <= share_stalled(Cores(None, None), 0.05) < 1


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_other_load_on_the_core_is_detected() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    assert share_stalled(Cores(core, core), 0.5) > 0.1  # half of it, but for what the kernel likes
    assert os.sched_getaffinity(0) == before
