"""The last lines of a run say which stage limited it, if one did."""

from __future__ import annotations

import pytest

from app.bulk.progress import summary

IDLE = dict.fromkeys(("rows", "errors", "equal"), 10.0) | dict.fromkeys(
    ("read", "decode", "compute", "answer", "write", "waited_for_rows"), 0.0
)


@pytest.mark.parametrize(
    ("spent", "decoders", "told"),
    [
        ({"decode": 18.0, "read": 2.0}, 2, "decoding is the bottleneck: busy 90% of the time"),
        ({"decode": 5.0, "read": 4.0}, 0, "reading and decoding is the bottleneck: busy 90%"),
        ({"compute": 10.0, "answer": 6.0}, 2, "computing is the bottleneck: busy 80%"),
        ({"write": 12.0}, 2, "writing is the bottleneck: busy 100%"),
        (
            {"decode": 0.6, "read": 0.1},
            2,
            "no stage is the bottleneck: decoding was the busiest, 3%",
        ),
        ({}, 0, "no stage is the bottleneck: "),
    ],
)
def test_a_stage_is_the_bottleneck_only_if_it_was_busy(
    spent: dict[str, float], decoders: int, told: str
) -> None:
    lines = summary({**IDLE, **spent, "seconds": 10.0}, decoders, replicas=2)
    assert lines[-1].startswith(told)
    assert lines[-1].endswith("; replicas waited for rows 0% of the time")
