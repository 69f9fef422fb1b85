"""Fills a prediction cache in a process of its own and prints `growth counted`, both in bytes.

python -m tests.unit.app.engine.cache_growth ENTRIES FLOATS_PER_VALUE TTL_S_OR_0 SHAPES
"""

from __future__ import annotations

import gc
import hashlib
import sys

import numpy as np
import psutil

from app.engine.cache import PredictionCache


def main(entries: int, floats: int, ttl_s: float, shapes: int) -> str:
    process = psutil.Process()
    cache = PredictionCache(1 << 40, ttl_s or None, timer=lambda: 0.0)
    rows = np.random.default_rng(0).random((64, floats), dtype=np.float32)
    cache.put(b"", {"logits": rows[0]})
    gc.collect()
    before = process.memory_info().rss
    for number in range(entries):
        key = hashlib.sha256(number.to_bytes(8)).digest()
        empty = np.empty((0, number % shapes), np.float32)
        cache.put(key, {"logits": rows[number % 64] if shapes == 1 else empty})
    gc.collect()
    return f"{process.memory_info().rss - before} {cache.used_bytes}"


if __name__ == "__main__":
    sys.stdout.write(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
