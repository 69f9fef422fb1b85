"""What is possible without HTTP is measured in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.bench.limits import limit
from loadtests.bench.workloads import LimitKind


@pytest.mark.parametrize("kind", ["batch", "image"])
def test_it_is_told_how_often_it_could_be_done(repository: Path, kind: LimitKind) -> None:
    assert limit(kind, repository / "digits" / "1", core=None, seconds=0.05) > 1
