"""Whether `retry_after_ms` came true, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.overload.hints import NO_HINTS, seconds_until_done
from tests.unit.loadtests.overload.made import hints


def test_the_truth_is_when_all_that_was_sent_and_accepted_before_had_been_answered() -> None:
    done_s = np.array([0.050, 0.120, 0.011, 0.300, 0.012, 0.400])
    accepted = np.array([True, True, False, True, False, True])
    refused = np.array([2, 4])
    # after the first two; after the third accepted one as well; the last one came too late to count
    assert seconds_until_done(done_s, accepted, refused) == pytest.approx([0.109, 0.288])


def test_what_overtakes_does_not_shorten_the_truth() -> None:
    done_s = np.array([0.200, 0.050, 0.010])
    accepted = np.array([True, True, False])
    assert seconds_until_done(done_s, accepted, np.array([2])) == pytest.approx([0.190])


def test_with_nothing_left_the_truth_is_zero() -> None:
    done_s = np.array([0.010, 0.020, 0.030])
    assert seconds_until_done(
        done_s, np.array([False, True, False]), np.array([0, 2])
    ) == pytest.approx([0, 0])


def test_hints_are_judged_where_they_or_the_truth_are_above_20_ms() -> None:
    found = hints((50, 50), (60, 100), (19, 5), (10, 30), (45, 10), (30, 0))
    assert found.judged == 5  # all but 19 instead of 5
    assert found.share_within == pytest.approx(2 / 5)
    assert found.median_ratio == pytest.approx(1.0)


def test_a_factor_of_two_is_within_and_more_is_not() -> None:
    assert hints((50, 100), (100, 50)).share_within == 1.0
    assert hints((49, 100), (101, 50)).share_within == 0.0


def test_hints_of_several_loads_add_up() -> None:
    both = hints((50, 50)) + NO_HINTS + hints((50, 150))
    assert (both.judged, both.share_within) == (2, 0.5)
    assert (NO_HINTS.judged, NO_HINTS.share_within, NO_HINTS.median_ratio) == (0, None, None)
