"""What a profiler's trace says of copies: how much of them went on beside a computation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COPIES = {"copy in": "HtoD", "copy out": "DtoH"}


@dataclass(frozen=True)
class Copies:
    """Copies of one direction; `hidden_us` of their microseconds a kernel ran, too."""

    count: int
    us: float
    hidden_us: float

    @property
    def hidden(self) -> float:
        """As a share; 1 without any copies."""
        return self.hidden_us / self.us if self.us else 1.0


def read(file: Path) -> dict[str, Copies]:
    """The copies of a trace in Chrome's format, as torch's profiler writes it, by direction."""
    return copies(json.loads(file.read_text())["traceEvents"])


def copies(events: Iterable[dict[str, Any]]) -> dict[str, Copies]:
    """See `read`."""
    spans = [
        (each["cat"], each["name"], float(each["ts"]), float(each["ts"]) + float(each["dur"]))
        for each in events
        if each.get("ph") == "X" and each.get("cat") in {"kernel", "gpu_memcpy"}
    ]
    computing = _union([(began, ended) for kind, _, began, ended in spans if kind == "kernel"])
    found = {}
    for title, direction in COPIES.items():
        these = [
            (began, ended)
            for kind, name, began, ended in spans
            if kind == "gpu_memcpy" and direction in name
        ]
        hidden_us = sum(_overlap(span, computing) for span in these)
        found[title] = Copies(len(these), sum(b - a for a, b in these), hidden_us)
    return found


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """As few spans as cover the same."""
    merged: list[tuple[float, float]] = []
    for began, ended in sorted(spans):
        if merged and began <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((began, ended))
    return merged


def _overlap(span: tuple[float, float], others: Sequence[tuple[float, float]]) -> float:
    return sum(max(0.0, min(span[1], b) - max(span[0], a)) for a, b in others)
