"""Sentences: all different, the same for the same number, of lengths as people write them."""

from __future__ import annotations

import statistics

from loadtests.traffic.sentences import LEAST_WORDS, MOST_WORDS, SENTENCES, WORDS, sentence


def test_each_number_has_its_own_sentence() -> None:
    assert len(set(WORDS)) == len(WORDS) == 256
    numbers = [*range(3000), *range(SENTENCES - 3000, SENTENCES)]
    beginnings = {tuple(sentence(number).split()[:LEAST_WORDS]) for number in numbers}
    assert len(beginnings) == len(numbers)
    assert sentence(7) == sentence(7)


def test_lengths_are_log_normal() -> None:
    words = [len(sentence(number).split()) for number in range(4000)]
    assert LEAST_WORDS <= min(words) <= 6
    assert max(words) <= MOST_WORDS
    assert 17 <= statistics.median(words) <= 19
    assert 20 <= statistics.fmean(words) <= 23  # of a log-normal above the median
