"""How forms are timed in turns, and what is kept of it."""

from __future__ import annotations

import pytest

from models.plan import (
    MAX_REPEATS,
    MIN_ROUNDS,
    SAMPLE_S,
    WARM_RUNS,
    FormTimes,
    summary,
    time_interleaved,
)
from tests.unit.models.manifests import form
from tests.unit.models.stopwatch import Stopwatch

A, B = form("a"), form("b")


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


class TestTimeInterleaved:
    def test_each_round_times_every_form_once_and_the_order_rotates(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch = Stopwatch(monkeypatch)
        runs = {name: watch.work(name, 1.0) for name in "abc"}
        taken = time_interleaved(runs, 3)
        assert taken == {name: [1.0] * 3 for name in "abc"}
        warm = (WARM_RUNS + 1) * 3  # and one to see how often a sample repeats it
        assert "".join(watch.calls[warm:]) == "abc" + "bca" + "cab"

    def test_forms_are_warm_before_they_are_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        watch = Stopwatch(monkeypatch)
        cold = watch.work("a", *[100.0] * WARM_RUNS, 1.0)
        assert time_interleaved({"a": cold}, 5) == {"a": [1.0] * 5}

    @pytest.mark.parametrize(
        ("forward_s", "repeats"),
        [
            (SAMPLE_S / 10, 10),
            (SAMPLE_S / 2.4, 2),
            (SAMPLE_S, 1),
            (100 * SAMPLE_S, 1),
            (SAMPLE_S / 1e6, MAX_REPEATS),
            (0.0, MAX_REPEATS),  # faster than the clock can tell
        ],
    )
    def test_short_forwards_are_repeated_for_a_sample_and_counted_once(
        self, monkeypatch: pytest.MonkeyPatch, forward_s: float, repeats: int
    ) -> None:
        watch = Stopwatch(monkeypatch)
        taken = time_interleaved({"a": watch.work("a", forward_s)}, 2)
        assert taken["a"] == pytest.approx([forward_s] * 2)
        assert len(watch.calls) == WARM_RUNS + 1 + 2 * repeats

    def test_no_round_is_begun_after_the_budget_and_none_is_left_half(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch = Stopwatch(monkeypatch)
        runs = {"a": watch.work("a", 1.0), "b": watch.work("b", 2.0)}
        taken = time_interleaved(runs, rounds=100, budget_s=8.5)
        assert taken == {"a": [1.0] * 3, "b": [2.0] * 3}

    def test_three_rounds_are_always_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        watch = Stopwatch(monkeypatch)
        runs = {"a": watch.work("a", 60.0), "b": watch.work("b", 90.0)}
        assert time_interleaved(runs, rounds=9, budget_s=0) == {
            "a": [60.0] * MIN_ROUNDS,
            "b": [90.0] * MIN_ROUNDS,
        }

    def test_with_the_real_clock_every_form_has_as_many_rounds(self) -> None:
        taken = time_interleaved({A: lambda: None, B: lambda: sum(range(1000))}, 4)
        assert [len(times) for times in taken.values()] == [4, 4]
        assert all(time > 0 for times in taken.values() for time in times)

    def test_what_a_form_raises_is_not_swallowed(self) -> None:
        def fails() -> None:
            raise RuntimeError("it broke")

        with pytest.raises(RuntimeError, match="it broke"):
            time_interleaved({A: fails}, 1)
