"""What the composition root derives from the settings."""

from __future__ import annotations

import pytest

from app import main
from app.settings import Settings

GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "machine", "processes", "budget"),
    [
        (4.0 * GIB, None, 1, int(3.8 * GIB)),  # 5 % are for others than models
        (4.0 * GIB, None, 2, int(1.9 * GIB)),
        (0.5, 8 * GIB, 2, int(1.9 * GIB)),
    ],
)
def test_processes_share_the_memory_of_models(
    monkeypatch: pytest.MonkeyPatch,
    memory: float,
    machine: int | None,
    processes: int,
    budget: int,
) -> None:
    monkeypatch.setattr(main, "memory_bytes", lambda: machine)
    limits = main._memory_limits(Settings(model_memory=memory, min_resident_s=7.0), processes)
    assert limits.budget_bytes == pytest.approx(budget, abs=2)
    assert limits.min_resident_s == 7.0
