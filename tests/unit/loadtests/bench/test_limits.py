"""What is possible without HTTP is measured in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.bench.limits import LIMIT_TEXTS, limit
from loadtests.bench.workloads import LimitKind
from tests.texts import write_text


@pytest.mark.parametrize("kind", ["batch", "image"])
def test_it_is_told_how_often_it_could_be_done(repository: Path, kind: LimitKind) -> None:
    assert limit(kind, repository / "digits" / "1", core=None, seconds=0.05) > 1


def test_texts_are_counted_one_by_one(tmp_path: Path) -> None:
    assert limit("text", write_text(tmp_path), core=None, seconds=0.05) > LIMIT_TEXTS
