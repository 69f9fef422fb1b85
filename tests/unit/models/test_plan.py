"""The plan: which form is the fastest at which batch size."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.plan import (
    MIN_GAIN,
    Form,
    FormTimes,
    Step,
    batch_sizes,
    choose,
    choose_one,
    extend_steps,
    form_at,
    is_faster,
    same_release,
    summary,
)
from tests.unit.models.manifests import form, make_plan, steps

A, B, C = form("a"), form("b"), form("c")
CLEARLY = 1 - 2 * MIN_GAIN  # less than this share of a time is a clear win
# Every form gets as many rounds as every other; a size has at least one form.
TIMES = st.integers(1, 12).flatmap(
    lambda rounds: st.lists(
        st.floats(0.5, 2, allow_nan=False), min_size=rounds, max_size=rounds
    ).map(tuple)
)


def table(**forms: float | Sequence[float]) -> dict[Form, list[float]]:
    """One size: letter -> its times, one number for five equal rounds."""
    return {
        form(name): [times] * 5 if isinstance(times, float) else list(times)
        for name, times in forms.items()
    }


@st.composite
def measured(draw: st.DrawFn) -> dict[int, dict[Form, list[float]]]:
    rounds = draw(st.integers(1, 9))
    times = st.lists(st.floats(0.5, 2), min_size=rounds, max_size=rounds)
    size = st.dictionaries(st.sampled_from((A, B, C)), times)
    return draw(st.dictionaries(st.sampled_from((1, 2, 4, 8, 16)), size))


@pytest.mark.parametrize(
    ("largest", "wanted"),
    [
        (1, (1,)),
        (12, (1, 2, 4, 8, 12)),
        (64, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_batch_sizes_are_powers_of_two_plus_largest(largest: int, wanted: tuple[int, ...]) -> None:
    assert batch_sizes(largest) == wanted


@pytest.mark.parametrize(
    ("size", "wanted"), [(1, A), (4, A), (5, B), (64, B), (65, C), (100, C), (101, C), (9999, C)]
)
def test_the_last_step_covers_all_larger_sizes(size: int, wanted: Form) -> None:
    assert form_at(steps((4, A), (64, B), (100, C)), size) == wanted


class TestIsFaster:
    @pytest.mark.parametrize(
        ("times", "others", "wanted"),
        [
            ([0.5] * 5, [1.0] * 5, True),
            ([1.0] * 5, [1.0] * 5, False),
            ([1 - MIN_GAIN / 2] * 5, [1.0] * 5, False),  # won, but by less than the gain
            # Each round has its own load: what counts is which form wins within a round.
            ([0.9, 1.8, 9.0, 0.9], [1.0, 2.0, 10.0, 1.0], True),
            # The median wins, but two rounds of five are lost.
            ([0.5, 0.5, 0.5, 1.1, 1.1], [1.0] * 5, False),
            # Noise that only adds, to each in rounds of its own: the lower quartile tells.
            ([0.9, 2.0, 2.0] * 4, [2.0, 1.0, 1.0] * 4, False),  # it lost most rounds
            ([0.9, 0.9, 2.0] * 4, [1.0, 1.0, 1.1] * 4, False),  # in one third it is never quick
            ([*([0.9] * 6), *([2.0] * 6)], [*([1.5] * 3), *([1.0] * 9)], False),  # half lost
            ([*([0.9] * 8), *([2.0] * 4)], [*([1.5] * 3), *([1.0] * 9)], True),
            ([*([0.9] * 7), *([2.0] * 4)], [*([1.5] * 3), *([1.0] * 8)], False),  # too few rounds
            # One hiccup in five rounds is not the rule.
            ([0.5, 0.5, 0.5, 0.5, 9.0], [1.0] * 5, True),
        ],
    )
    def test_by_more_than_the_noise(
        self, times: list[float], others: list[float], wanted: bool
    ) -> None:
        assert is_faster(times, others) is wanted

    @given(TIMES, st.data())
    def test_comparison_is_asymmetric(self, times: tuple[float, ...], data: st.DataObject) -> None:
        others = data.draw(
            st.lists(st.floats(0.5, 2), min_size=len(times), max_size=len(times)), "others"
        )
        assert not is_faster(times, times)
        assert not (is_faster(times, others) and is_faster(others, times))

    def test_unsettled_winner_must_win_every_round(self) -> None:
        hiccup = [0.5, 0.5, 0.5, 0.5, 1.1]
        assert is_faster(hiccup, [1.0] * 5)
        assert not is_faster(hiccup, [1.0] * 5, always=True)
        assert is_faster([0.5] * 5, [1.0] * 5, always=True)

    def test_few_hiccups_in_many_rounds_are_ignored(self) -> None:
        times = [0.5] * 10 + [1.1] * 2
        assert is_faster(times, [1.0] * 12, always=True)
        assert not is_faster(times[2:], [1.0] * 10, always=True)  # too few rounds
        assert not is_faster([0.5] * 8 + [1.1] * 4, [1.0] * 12, always=True)


class TestChoose:
    def test_form_changes_only_on_a_clear_win(self) -> None:
        rounds = {
            1: table(a=1.0, b=2.0),
            2: table(a=1.0, b=CLEARLY),
            4: table(a=1.0, b=1.01),
            8: table(a=CLEARLY, b=1.0),
        }
        assert choose(rounds, [A, B]) == steps((1, A), (4, B), (8, A))

    def test_first_of_equal_candidates_is_chosen(self) -> None:
        rounds = {1: table(a=1.0, b=1.0, c=0.99), 2: table(a=1.0, b=1.0, c=0.99)}
        assert choose(rounds, [B, C, A]) == steps((2, B))
        assert choose(rounds, [A, B, C]) == steps((2, A))

    def test_preference_decides_when_previous_form_cannot_run(self) -> None:
        rounds = {1: table(a=1.0, b=1.0, c=0.1), 2: table(a=1.0, b=1.0)}
        assert choose(rounds, [B, A, C]) == steps((1, C), (2, B))

    def test_a_busy_machine_keeps_the_preferred_form(
        self,
    ) -> None:
        mostly = table(a=1.0, b=[0.5, 0.5, 0.5, 0.5, 1.1])
        rounds = {1: mostly, 2: mostly, 4: table(a=1.0, b=0.5)}
        assert choose(rounds, [A, B]) == steps((4, B))
        assert choose(rounds, [A, B], unsettled=[1, 2, 4]) == steps((2, A), (4, B))

    def test_last_step_extends_to_unmeasured_sizes(self) -> None:
        assert extend_steps(steps((2, A), (4, B)), 64) == steps((2, A), (64, B))
        assert extend_steps(steps((64, A)), 8) == steps((64, A))

    def test_forms_that_are_not_candidates_are_ignored(self) -> None:
        rounds = {1: table(a=1.0, b=0.1), 2: table(b=0.1), 4: table(a=1.0)}
        assert choose(rounds, [A]) == steps((4, A))
        assert choose(rounds, [C]) == ()
        assert choose({}, [A]) == ()

    def test_new_winner_faces_the_remaining_forms(self) -> None:
        times = table(a=1.0, b=[0.8, 0.8, 0.8, 1.2, 0.8], c=[0.5, 0.5, 0.5, 1.1, 1.1])
        assert not is_faster(
            times[C], times[A]
        )  # too noisy, but it beats the form that beats the first
        assert is_faster(times[B], times[A])
        assert is_faster(times[C], times[B])
        assert choose({1: times}, [A, B, C]) == steps((1, C))

    @given(measured())
    def test_a_clearly_better_form_is_always_chosen(
        self, rounds: dict[int, dict[Form, list[float]]]
    ) -> None:
        chosen = choose(rounds, [A, B, C])
        assert bool(chosen) == any(rounds.values())
        for size, taken in rounds.items():
            if not taken:
                continue
            found = taken[form_at(chosen, size)]
            best = min(taken.values(), key=statistics.median)
            ratios = [mine / other for mine, other in zip(best, found, strict=True)]
            lost = sum(ratio >= 1 for ratio in ratios)
            is_noise = lost >= len(ratios) - 3 * len(ratios) // 4
            assert is_noise or statistics.median(ratios) >= 1 - MIN_GAIN

    @given(measured())
    def test_steps_ascend_and_adjacent_forms_differ(
        self, rounds: dict[int, dict[Form, list[float]]]
    ) -> None:
        chosen = choose(rounds, [A, B, C])
        sizes = [step.up_to for step in chosen]
        assert sizes == sorted(set(sizes))
        assert all(one.form != two.form for one, two in itertools.pairwise(chosen))
        if chosen:
            assert sizes[-1] == max(size for size, taken in rounds.items() if taken)
        for size, taken in rounds.items():
            assert not taken or form_at(chosen, size) in taken


class TestSummary:
    def test_quartiles_in_microseconds_per_batch(self) -> None:
        rounds = {4: {A: [5e-6, 1e-6, 3e-6, 2e-6, 4e-6]}, 1: {A: [7.126e-6]}, 2: {B: [1.0]}}
        found = summary(rounds, A, "int8")
        assert found == FormTimes(
            form=A,
            precision="int8",
            batch_sizes=(1, 4),
            median_us=(7.13, 3),
            low_us=(7.13, 2),
            high_us=(7.13, 4),
        )


class TestContract:
    @pytest.mark.parametrize(
        "sizes", [(), (4, 2), (2, 2), (1, 4, 3)], ids=["none", "falling", "equal", "mixed"]
    )
    def test_steps_that_do_not_ascend_are_refused(self, sizes: tuple[int, ...]) -> None:
        message = f"steps of bf16 must ascend, got up_to {list(sizes)}"
        with pytest.raises(ValidationError, match=re.escape(message)):
            make_plan({"bf16": steps(*((size, A) for size in sizes))}, precision="bf16")

    @pytest.mark.parametrize("name", ["median_us", "low_us", "high_us"])
    def test_times_that_do_not_match_the_sizes_are_refused(self, name: str) -> None:
        values: dict[str, Any] = {
            "form": form("script", optimized=True),
            "precision": "float32",
            "batch_sizes": (1, 2),
            **dict.fromkeys(("median_us", "low_us", "high_us"), (1.0, 2.0)),
        }
        assert FormTimes(**values).batch_sizes == (1, 2)
        message = "script, optimized at load: one time per batch size is needed"
        with pytest.raises(ValidationError, match=message):
            FormTimes(**values | {name: (1.0,)})


def test_builds_of_one_version_are_the_same_release() -> None:
    assert same_release("2.13.0+cpu", "2.13.0")
    assert not same_release("2.13.0", "2.13.1+cpu")


class TestOneFormForAllSizes:
    SCRIPT, OTHER = Form(variant="bf16"), Form(variant="bf16", optimized=True)

    def chosen(self, script: list[float], other: list[float]) -> tuple[Step, ...]:
        rounds = {
            size: {self.SCRIPT: [one] * 3, self.OTHER: [two] * 3}
            for size, one, two in zip((1, 8), script, other, strict=True)
        }
        return choose_one(rounds, (self.SCRIPT, self.OTHER))

    def test_form_that_is_faster_overall_runs_every_size(self) -> None:
        assert self.chosen([1.0, 8.0], [1.1, 4.0]) == (Step(up_to=8, form=self.OTHER),)
        assert self.chosen([1.0, 8.0], [4.0, 7.0]) == (Step(up_to=8, form=self.SCRIPT),)

    def test_partially_measured_form_is_not_chosen(self) -> None:
        rounds = {1: {self.SCRIPT: [1.0], self.OTHER: [0.1]}, 2: {self.SCRIPT: [1.0]}}
        assert choose_one(rounds, (self.SCRIPT, self.OTHER)) == (Step(up_to=2, form=self.SCRIPT),)
        assert choose_one({}, (self.SCRIPT,)) == ()
