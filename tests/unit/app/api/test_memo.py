"""The memo keeps repeated bodies, within its limit, and ignores others."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest

from app.api.memo import ONCE, UNUSED, AnswerMemo, Remembered
from app.types import ModelId

MODEL = ModelId("double", 1)
IDENTITY = "digest:double"
BODY = b'{"input": [1, 2]}'
HEADERS = ((b"content-type", b"application/json"),)
ANSWER = Remembered((b"k" * 32,), (HEADERS, b'{"prediction": 1}'))


def noticed(memo: AnswerMemo, body: bytes = BODY) -> bytes | None:
    return memo.digest(MODEL, IDENTITY, "", body) if memo.has_come_before(body) else None


def test_process_memory_grows_as_counted() -> None:
    command = [sys.executable, "-m", "tests.unit.app.api.memo_growth"]
    done = subprocess.run(
        [*command, "3000", "64", "2000"], capture_output=True, text=True, check=True
    )
    growth, counted = (int(number) for number in done.stdout.split())
    assert 1 / 1.5 < growth / counted < 1.5


def test_repeat_is_found_after_many_unique_bodies() -> None:
    memo = AnswerMemo(1_000_000)
    assert all(noticed(memo, b"%d" % number * 100) is None for number in range(UNUSED))
    twice = [b"new %d" % number for number in range(UNUSED) for _ in range(2)]
    digests = [digest for body in twice if (digest := noticed(memo, body)) is not None]
    assert 0 < len(digests) < UNUSED / 2  # most are not looked at
    memo.put(digests[0], ANSWER)
    assert memo.get(digests[0]) is ANSWER
    assert noticed(memo, BODY) is None
    assert noticed(memo, BODY) is not None  # all are looked at again


def test_bodies_that_seem_equal_are_seldom_digested_unless_one_repeats() -> None:
    memo = AnswerMemo(10_000)
    bodies = [
        bytes([octet]) * place + b"\0" + bytes([octet]) * ((1 << 12) - place)
        for place in range(1, 17)  # in the first of 256 distances, where only place 0 counts
        for octet in range(1, 256)
    ]
    digests = [digest for body in bodies if (digest := noticed(memo, body)) is not None]
    assert len(digests) < len(bodies) / 2
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("number_bytes", [4, 5, 8])  # float32, "0.5, ", float64
def test_large_bodies_that_differ_in_places_are_told_apart(number_bytes: int) -> None:
    memo, random = AnswerMemo(10_000), Random(0)
    plain = [bytes(number_bytes)] * 1024
    for _ in range(UNUSED - 1):
        drawn = plain.copy()
        for place in random.sample(range(len(drawn)), 100):
            drawn[place] = random.randbytes(number_bytes)
        assert noticed(memo, b"".join(drawn)) is None


def test_only_old_bodies_are_forgotten() -> None:
    memo = AnswerMemo(10_000)

    memo.put(b"d" * 32, ANSWER)

    def noticed_among_repeats(body: bytes) -> bytes | None:
        memo.get(b"d" * 32)  # or most bodies would not be looked at
        return noticed(memo, body)

    noticed_among_repeats(b"old")
    for number in range(ONCE - 2):
        noticed_among_repeats(b"%d" % number)
    noticed_among_repeats(b"young")  # opens another generation; the one before it is still known
    assert noticed_among_repeats(b"old") is not None
    for number in range(2 * ONCE):
        noticed_among_repeats(b"more %d" % number)
    assert noticed_among_repeats(b"old") is None


def test_digests_cover_model_identity_query_and_body() -> None:
    memo = AnswerMemo(10_000)
    digests = [
        memo.digest(MODEL, IDENTITY, "", BODY),
        memo.digest(MODEL, IDENTITY, "top_k=1", BODY),
        memo.digest(ModelId("double", 2), IDENTITY, "", BODY),
        memo.digest(ModelId("doubl", 1), IDENTITY, "", BODY),
        memo.digest(MODEL, "digest:another", "", BODY),
        memo.digest(MODEL, IDENTITY, "", BODY + b" "),
    ]
    assert len(set(digests)) == len(digests)


def test_no_capacity_means_no_memo() -> None:
    memo = AnswerMemo(0)
    assert [noticed(memo) for _ in range(4)] == [None] * 4
    memo.put(b"d" * 32, ANSWER)
    assert memo.get(b"d" * 32) is None
    assert memo.used_bytes == 0


class TestBounds:
    def digest(self, number: int) -> bytes:
        return number.to_bytes(32)

    def cost(self) -> int:
        memo = AnswerMemo(1 << 30)
        memo.put(self.digest(0), ANSWER)
        return memo.used_bytes

    def test_least_recently_used_answer_is_evicted(self) -> None:
        memo = AnswerMemo(3 * self.cost())
        for number in range(3):
            memo.put(self.digest(number), ANSWER)
        memo.get(self.digest(0))
        memo.put(self.digest(3), ANSWER)
        kept = [memo.get(self.digest(number)) is not None for number in range(4)]
        assert kept == [True, False, True, True]
        assert memo.used_bytes == 3 * self.cost()
