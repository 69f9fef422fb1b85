"""Fills a memo of answers in a process of its own and prints `growth counted`, both in bytes.

python -m tests.unit.app.api.memo_growth ENTRIES KEYS_PER_ENTRY CONTENT_BYTES
"""

from __future__ import annotations

import gc
import os
import sys

import psutil

from app.api.memo import AnswerMemo, Remembered
from app.types import ModelId

HEADERS = ((b"content-type", b"application/json"),)
MODEL = ModelId("double", 1)


def main(entries: int, keys: int, content_bytes: int) -> str:
    process = psutil.Process()
    memo = AnswerMemo(1 << 40)
    bodies = [number.to_bytes(8) for number in range(entries)]
    for body in bodies[:2]:
        fill(memo, body, keys, content_bytes)
    gc.collect()
    before, counted = process.memory_info().rss, memo.used_bytes
    for body in bodies[2:]:
        fill(memo, body, keys, content_bytes)
    gc.collect()
    return f"{process.memory_info().rss - before} {memo.used_bytes - counted}"


def fill(memo: AnswerMemo, body: bytes, keys: int, content_bytes: int) -> None:
    """As for a repeated body."""
    memo.has_come_before(body)
    digest = memo.digest(MODEL, "digest:any", "application/json", body)
    made = tuple(os.urandom(32) for _ in range(keys))
    memo.put(digest, Remembered(made, (HEADERS, os.urandom(content_bytes))))


if __name__ == "__main__":
    sys.stdout.write(main(*(int(each) for each in sys.argv[1:4])))
