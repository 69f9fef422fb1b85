"""Copies that a trace shows, and how many of them were hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.devices.trace import Copies, read


def event(kind: str, name: str, began: float, us: float) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": began, "dur": us}


def test_copies_that_overlap_a_kernel_are_hidden(tmp_path: Path) -> None:
    events = [
        event("kernel", "a", 100, 50),
        event("kernel", "b", 140, 30),  # until 170, with the one before
        event("kernel", "c", 200, 10),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 160, 60),  # 10 and 10 of 60
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 20),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 145, 5),
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 0, 99),
        event("cpu_op", "aten::copy_", 0, 1000),
        {"ph": "M", "name": "process_name"},
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    found = read(file)
    assert found == {"copy in": Copies(2, 80, 20), "copy out": Copies(1, 5, 5)}
    assert found["copy in"].hidden == pytest.approx(0.25)
    assert Copies(0, 0.0, 0.0).hidden == 1.0
