"""How long a batch will take, by what batches took."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.batch_times import BatchTimes

LINEAR = {size: 0.007 * size for size in (1, 2, 4, 8, 16, 32, 64)}
AWAKE = {1: 0.0075, 2: 0.0128, 4: 0.0251, 8: 0.0470}  # one alone woke the core
FLAT = {size: 0.020 + 0.0005 * size for size in (1, 2, 4, 8, 16, 32, 64)}


def test_nothing_is_known_at_first() -> None:
    times = BatchTimes(64, {})
    assert [times.expected_s(items) for items in (1, 64)] == [0, 0]
    assert times.full_s == 0
    assert times.efficient(0.001) == 64


def test_between_two_sizes_it_grows_evenly_and_beyond_them_it_is_rather_too_long() -> None:
    times = BatchTimes(64, {2: 0.010, 8: 0.040})
    assert times.expected_s(2) == 0.010
    assert times.expected_s(5) == pytest.approx(0.025)
    assert times.expected_s(8) == 0.040
    assert times.expected_s(1) == 0.010
    assert times.expected_s(64) == times.full_s == pytest.approx(0.320)


@pytest.mark.parametrize("start", [{}, {1: 1.0, 64: 1.0}, LINEAR])
def test_it_learns_what_batches_take(start: dict[int, float]) -> None:
    times, draw = BatchTimes(64, start), random.Random(1)
    for _ in range(2000):
        items = draw.randint(1, 64)
        times.took(items, 0.002 + 0.001 * items)
    for items in (1, 2, 3, 7, 16, 33, 50, 64):
        assert times.expected_s(items) == pytest.approx(0.002 + 0.001 * items, rel=0.25)
    assert times.full_s == times.expected_s(64)
    assert times.deviation < 0.1


def test_one_accident_does_not_count_for_more_than_it_may() -> None:
    times = BatchTimes(64, LINEAR)
    times.took(8, 1000.0)
    assert times.expected_s(8) == pytest.approx(0.056 * 1.8)
    for _ in range(20):
        times.took(8, 0.056)
    assert times.expected_s(8) == pytest.approx(0.056, rel=0.05)


FACTORS = [1e-6, 0.01, 30.0, 1e6]


@pytest.mark.parametrize("factor", FACTORS)
def test_three_in_a_row_are_no_accident(factor: float) -> None:
    times = BatchTimes(64, LINEAR)
    for items in (8, 2, 8):  # of two sizes: the machine is another
        times.took(items, LINEAR[items] * factor)
    for items, seconds in LINEAR.items():
        assert times.expected_s(items) == pytest.approx(seconds * factor, rel=1.0)
    for _ in range(30):
        times.took(8, 0.056 * factor)
    assert times.expected_s(8) == pytest.approx(0.056 * factor, rel=0.05)
    assert times.full_s == pytest.approx(0.448 * factor, rel=1.0)
    assert times.deviation < 0.1


@pytest.mark.parametrize("factor", FACTORS)
def test_three_of_one_size_say_nothing_of_others(factor: float) -> None:
    times = BatchTimes(64, LINEAR)
    for _ in range(33):
        times.took(8, 0.056 * factor)
    assert times.expected_s(8) == pytest.approx(0.056 * factor, rel=0.05)
    for items in (1, 2, 4, 16, 32, 64):
        assert times.expected_s(items) == LINEAR[items]
    assert times.full_s == LINEAR[64]


@pytest.mark.parametrize("factor", [0.01, 30.0])
def test_between_two_sizes_both_are_corrected_and_no_other(factor: float) -> None:
    times = BatchTimes(64, LINEAR)
    for items in (5, 6, 7):  # all of them batches of up to eight
        times.took(items, 0.007 * items * factor)
    for items in (4, 6, 8):
        assert times.expected_s(items) == pytest.approx(0.007 * items * factor, rel=1.0)
    for items in (1, 2, 16, 32, 64):
        assert times.expected_s(items) == LINEAR[items]


def test_of_three_surprises_the_mildest_is_believed() -> None:
    times = BatchTimes(8, {8: 0.010})
    for seconds in (0.2, 0.2, 8.0):  # the first two count as accidents of five times each
        times.took(8, seconds)
    assert times.expected_s(8) < 0.5


def test_surprises_in_both_directions_are_accidents() -> None:
    times = BatchTimes(8, {8: 0.010})
    for seconds in (0.090, 0.0005, 0.090, 0.0005) * 5:
        before = times.expected_s(8)
        times.took(8, seconds)
        assert times.expected_s(8) <= 1.8 * before + 1e-9


def test_what_is_around_a_batch_is_the_same_for_every_size() -> None:
    times = BatchTimes(64, FLAT)
    for _ in range(40):
        times.took(2, FLAT[2], 0.1)
    for items, seconds in FLAT.items():
        assert times.expected_s(items) == pytest.approx(seconds + 0.1, rel=0.01)
    for _ in range(40):
        times.took(64, FLAT[64], 0.0)
    for items, seconds in FLAT.items():
        assert times.expected_s(items) == pytest.approx(seconds, rel=0.01)


def test_a_batch_of_which_only_the_model_s_part_is_known_says_nothing_of_the_rest() -> None:
    times = BatchTimes(64, LINEAR)
    for _ in range(40):
        times.took(8, LINEAR[8], 0.1)
    for _ in range(40):
        times.took(8, LINEAR[8])
    assert times.expected_s(8) == pytest.approx(LINEAR[8] + 0.1, rel=0.01)


def test_one_stall_does_not_count_for_more_than_it_may() -> None:
    times = BatchTimes(64, LINEAR)
    times.took(8, LINEAR[8], 1000.0)
    assert times.expected_s(8) == pytest.approx(LINEAR[8] * 1.8)
    for _ in range(30):
        times.took(8, LINEAR[8], 0.0)
    assert times.expected_s(8) == pytest.approx(LINEAR[8], rel=0.01)


def test_of_three_stalls_in_a_row_the_shortest_is_believed() -> None:
    times = BatchTimes(64, LINEAR)
    for seconds in (9.0, 3.0, 70.0):
        times.took(8, LINEAR[8], seconds)
    assert times.expected_s(1) == pytest.approx(LINEAR[1] + 3.0)


QUICK = {size: 0.0003 + 0.00002 * size for size in FLAT}


def run(
    times: BatchTimes, seconds_of: Callable[[int, float], float], for_s: float
) -> tuple[list[int], float]:
    """Batches of the size that is thought to be the best; their sizes, and what they took."""
    sizes: list[int] = []
    took_s = 0.0
    while took_s < for_s:
        sizes.append(times.efficient(0.1))
        seconds = seconds_of(sizes[-1], took_s)
        times.took(sizes[-1], seconds, 0.0)
        took_s += seconds
    return sizes, took_s


def test_a_size_that_was_slow_once_is_not_avoided_for_ever() -> None:
    def seconds(items: int, now: float) -> float:
        return QUICK[items] * (80.0 if now < 2.0 and items > 2 else 1.0)

    times = BatchTimes(64, QUICK)
    sizes, _ = run(times, seconds, 30.0)
    assert min(sizes) < 64  # for a while it is
    assert sizes[-300:] == [64] * 300


def test_all_sizes_follow_the_first_that_is_run_after_they_were_all_slow() -> None:
    """As after a pause of the whole process in the middle of three forwards, one after another."""
    times = BatchTimes(64, QUICK)
    for items in (8, 2, 8):
        times.took(items, QUICK[items] * 200)
    assert times.expected_s(64) > 100 * QUICK[64]
    for _ in range(3):
        times.took(2, QUICK[2])
    for items in (2, 16, 32, 64):
        assert times.expected_s(items) == pytest.approx(QUICK[items], rel=0.6)


@pytest.mark.parametrize("slow_s", [0.0008, 0.002, 0.02])
def test_a_size_that_is_slow_is_tried_again_and_costs_little(slow_s: float) -> None:
    def seconds(items: int, _: float) -> float:
        return slow_s * items if items > 8 else QUICK[items]

    times = BatchTimes(64, QUICK)
    sizes, took_s = run(times, seconds, 100.0)
    assert sum(sizes) / took_s > 0.9 * 8 / QUICK[8]
    assert any(size > 8 for size in sizes)


@pytest.mark.parametrize("allowed_s", [0.03, 0.05, 0.1])
def test_batches_do_not_shrink_where_it_is_what_is_around_them_that_takes_long(
    allowed_s: float,
) -> None:
    times = BatchTimes(64, QUICK)
    for _ in range(40):
        times.took(8, QUICK[8], 0.6 * allowed_s)
    assert times.efficient(allowed_s) == 64


def test_scatter_is_known() -> None:
    times = BatchTimes(8, {8: 0.010})
    for index in range(200):
        times.took(8, 0.008 if index % 2 else 0.012)
    assert times.deviation == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(
    ("measured", "allowed_s", "most"),
    [
        (LINEAR, 30.0, 64),  # no pressure
        (LINEAR, 0.1, 1),  # larger ones are no more efficient, and answer later
        (LINEAR, 0.001, 1),  # it cannot be met, but one at a time comes nearest
        (FLAT, 0.1, 32),  # 64 take 52 ms: too long beside another batch
        (FLAT, 0.07, 16),
        (FLAT, 10.0, 64),
        (AWAKE, 0.1, 2),  # it seems that 4 gain a twentieth, and 8 a seventh
    ],
)
def test_batches_are_smaller_where_the_time_allowed_is_short(
    measured: dict[int, float], allowed_s: float, most: int
) -> None:
    assert BatchTimes(64, measured).efficient(allowed_s) == most


SOME = {1: 0.0065, 2: 0.0125, 4: 0.0248, 8: 0.0490}  # larger ones gain a little: 4 to 6 %


def test_who_was_held_up_once_is_not_left_for_a_size_that_was_not() -> None:
    times = BatchTimes(64, SOME)
    for _ in range(20):
        for seconds in (SOME[2],) * 30 + (3 * SOME[2],):
            times.took(2, seconds)
            assert times.efficient(0.1) == 2


def test_what_slows_down_all_sizes_is_no_reason_to_change_to_one_that_is_not_run() -> None:
    """As where the event loop refuses so much that every forward takes a tenth longer."""
    times = BatchTimes(64, SOME)
    for _ in range(1000):
        times.took(2, 1.1 * SOME[2])
        assert times.efficient(0.1) == 2


def test_a_size_that_is_slow_beside_one_that_is_not_does_not_change_what_is_best() -> None:
    """As below capacity: batches of one come to a core that has slept, batches of two do not."""
    times = BatchTimes(64, SOME)
    for _ in range(500):
        for items, slower in ((1, 1.15), (2, 1.05)):
            times.took(items, slower * SOME[items])
            assert times.efficient(0.1) == 2


def test_a_size_that_has_become_much_slower_by_itself_is_left() -> None:
    times = BatchTimes(64, SOME)
    sizes, _ = run(times, lambda items, _: SOME[items] * (2 if items == 2 else 1), 10.0)
    assert sizes[:3] == [2, 2, 2]
    assert sizes.count(2) < 0.05 * len(sizes)


@pytest.mark.parametrize("slower", [1.6, 1.8, 2.0])
def test_a_device_that_has_become_slower_is_followed_at_once_and_back(slower: float) -> None:
    times = BatchTimes(64, FLAT)
    sizes, _ = run(times, lambda items, _: slower * FLAT[items], 5.0)
    assert sizes[0] == 32
    assert sum(slower * FLAT[size] > 0.055 for size in sizes) < 0.1 * len(sizes)
    sizes, _ = run(times, lambda items, _: FLAT[items], 20.0)
    assert sizes[-50:] == [32] * 50


def test_a_trial_that_was_held_up_is_not_the_last_one() -> None:
    times = BatchTimes(64, FLAT)
    for _ in range(20):
        times.took(32, 2 * FLAT[32])  # it alone has become slow
    assert times.efficient(0.1) == 16
    trials = 0

    def seconds(items: int, _: float) -> float:
        nonlocal trials
        trials += items == 32
        return FLAT[items] * (2.5 if items == 32 and trials == 1 else 1)

    sizes, _ = run(times, seconds, 60.0)
    assert sizes[-50:] == [32] * 50


def test_a_smaller_size_that_was_held_up_is_tried_again_too() -> None:
    best_at_two = {1: 0.010, 2: 0.0125, 4: 0.030, 8: 0.062}
    times = BatchTimes(64, best_at_two)
    for _ in range(3):
        times.took(2, 3 * best_at_two[2])
    assert times.efficient(0.1) != 2
    sizes, _ = run(times, lambda items, _: best_at_two[items], 20.0)
    assert sizes[-50:] == [2] * 50


def test_who_is_slow_for_good_is_tried_ever_more_rarely() -> None:
    """Not every fifty batches: each trial takes longer than all the others."""
    times = BatchTimes(64, FLAT)
    slow = {size: FLAT[size] * (2 if size >= 32 else 1) for size in FLAT}
    run(times, lambda items, _: slow[items], 30.0)
    sizes, _ = run(times, lambda items, _: slow[items], 60.0)
    assert sizes.count(32) <= 5


@pytest.mark.parametrize("allowed_s", [0.0409, 0.042])
def test_less_time_does_not_mean_larger_batches(allowed_s: float) -> None:
    assert BatchTimes(64, FLAT).efficient(allowed_s) == 8  # with half of it for 2, or for none


def test_after_stalls_of_the_loop_sizes_are_soon_what_they_were() -> None:
    times = BatchTimes(64, LINEAR)
    for _ in range(3):
        times.took(1, LINEAR[1], 3.0)
    sizes, _ = run(times, lambda items, _: LINEAR[items], 10.0)
    assert sum(size > 1 for size in sizes) < 60
    assert sizes[-20:] == [1] * 20


def test_a_hundredfold_change_is_known_to_the_choice_as_well() -> None:
    times = BatchTimes(64, FLAT)
    for items in (32, 16, 32, 16):
        times.took(items, 100 * FLAT[items])
    assert times.efficient(0.1) == 8  # nothing fits, and 8 take hardly longer than one


def test_one_slow_forward_does_not_change_from_all_to_one() -> None:
    times = BatchTimes(64, LINEAR)
    allowed_s = 8.2 * LINEAR[64]
    assert times.efficient(allowed_s) == 64
    times.took(64, 2 * LINEAR[64])
    assert times.efficient(allowed_s) == 64


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_it_scatters_less_than_one_surprise_says(factor: float) -> None:
    times = BatchTimes(64, SOME)
    for _ in range(50):
        times.took(2, SOME[2])
    times.took(2, factor * SOME[2])
    assert times.deviation == pytest.approx(0.5 * 0.05)


def test_scatter_is_known_soon() -> None:
    times = BatchTimes(64, SOME)
    for index in range(10):
        times.took(2, (0.9 if index % 2 else 1.1) * SOME[2])
    assert times.deviation == pytest.approx(0.1, rel=0.35)


def test_batches_of_no_time_are_no_trouble() -> None:
    times = BatchTimes(4, {1: 0.0, 4: 0.0})
    for _ in range(5000):
        times.took(3, 0.0)
    assert times.efficient(1.0) == 4


@given(
    st.dictionaries(st.sampled_from([1, 2, 4, 8, 12]), st.floats(1e-6, 10)),
    st.lists(
        st.tuples(st.integers(1, 12), st.floats(0, 100), st.none() | st.floats(0, 100)),
        max_size=60,
    ),
    st.floats(-1, 100),
)
def test_whatever_happens_the_numbers_stay_sane(
    measured: dict[int, float], took: list[tuple[int, float, float | None]], allowed_s: float
) -> None:
    times = BatchTimes(12, measured)
    for items, seconds, overhead_s in took:
        times.took(items, seconds, overhead_s)
        assert all(times.expected_s(n) > 0 for n in range(1, 13))
        assert times.deviation >= 0
        assert 1 <= times.efficient(allowed_s) <= 12


SIZES = [1, 2, 4, 8, 16]
measurements = st.dictionaries(st.sampled_from(SIZES), st.floats(1e-6, 10), min_size=1)


@given(measurements, st.integers(1, 40))
def test_between_two_sizes_lies_what_is_expected_between_them(
    measured: dict[int, float], items: int
) -> None:
    times = BatchTimes(16, measured)
    expected_s = times.expected_s(items)
    below = [measured[size] for size in sorted(measured) if size <= items]
    above = [measured[size] for size in sorted(measured) if size >= items]
    if below and above:
        least, most = sorted((below[-1], above[0]))
        assert least * 0.999 <= expected_s <= most * 1.001
    elif below:
        assert expected_s == pytest.approx(below[-1] * items / max(measured))
    else:
        assert expected_s == above[0]


@given(measurements, st.lists(st.integers(1, 16), max_size=20))
def test_what_was_expected_teaches_nothing(measured: dict[int, float], batches: list[int]) -> None:
    times, untaught = BatchTimes(16, measured), BatchTimes(16, measured)
    for items in batches:
        times.took(items, times.expected_s(items))
    assert times.deviation == pytest.approx(0, abs=1e-9)
    for size in sorted(measured):
        assert times.expected_s(size) == pytest.approx(untaught.expected_s(size))


# As after a warm-up: a batch smaller or larger than all that are known is taken in proportion.
warmed_up = st.fixed_dictionaries(dict.fromkeys(SIZES, st.floats(1e-6, 10)))


@given(warmed_up, st.integers(1, 16), st.floats(0.3, 3))
def test_what_is_learned_lies_between_what_was_known_and_what_was_seen(
    measured: dict[int, float], items: int, factor: float
) -> None:
    times = BatchTimes(16, measured)
    before_s = times.expected_s(items)
    seen_s = before_s * factor
    times.took(items, seen_s)
    least, most = sorted((before_s, seen_s))
    assert least * 0.999 <= times.expected_s(items) <= most * 1.001


@given(measurements, st.floats(1e-6, 100))
def test_a_batch_takes_half_of_the_time_allowed_or_hardly_longer_than_one_item(
    measured: dict[int, float], allowed_s: float
) -> None:
    times = BatchTimes(16, measured)
    size = times.efficient(allowed_s)
    if size == 16 and times.expected_s(16) * 8 <= allowed_s:
        return  # no pressure
    most_s = max(allowed_s / 2, 1.25 * times.expected_s(1))
    value = {
        each: each / times.expected_s(each) * (1 - min(1, times.expected_s(each) / allowed_s) / 2)
        for each in (1, 2, 4, 8, 16)
        if times.expected_s(each) <= most_s
    }
    assert value[size] >= max(value.values()) * (1 - 1e-9)
