"""Sentences: all different, the same for the same number, of lengths as people write them."""

from __future__ import annotations

from loadtests.traffic.sentences import LEAST_WORDS, SENTENCES, WORDS, sentence


def test_each_number_has_its_own_sentence() -> None:
    assert len(set(WORDS)) == len(WORDS) == 256
    numbers = [*range(3000), *range(SENTENCES - 3000, SENTENCES)]
    beginnings = {tuple(sentence(number).split()[:LEAST_WORDS]) for number in numbers}
    assert len(beginnings) == len(numbers)
    assert sentence(7) == sentence(7)
