"""What is possible without HTTP is measured in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.bench.limits import LIMIT_TEXTS, limit
from loadtests.bench.workloads import LimitKind
from tests.texts import write_text


@pytest.mark.parametrize("kind", ["batch", "image"])
def test_limit_is_a_rate_per_second(repository: Path, kind: LimitKind) -> None:
    per_s, cpu_s = limit(kind, repository / "digits" / "1", core=None, seconds=0.05)
    assert per_s > 1
    assert 0 < cpu_s <= 1.2 / per_s  # of one thread; clocks are not read at the same moment


def test_texts_are_counted_individually(tmp_path: Path) -> None:
    per_s, cpu_s = limit("text", write_text(tmp_path), core=None, seconds=0.05)
    assert per_s > LIMIT_TEXTS > cpu_s
