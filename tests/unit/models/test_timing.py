"""Timing of forms in turns, on quiet and busy machines, with a test clock."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from models import timing
from models.system.cores import CoreTime
from models.timing import (
    MAX_REPEATS,
    MIN_ROUNDS,
    SAMPLE_S,
    SLOW_S,
    WARM_RUNS,
    Timing,
    TimingLimits,
    all_threads,
    lasts_s,
    share_waited,
    take_turns,
    this_thread,
    time_interleaved,
)
from tests.unit.models.stopwatch import PATIENCE, TRIES, Stopwatch

A, B = "a", "b"
MS = 1e-3


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    return Stopwatch(monkeypatch)


class TestTimeInterleaved:
    def test_rounds_time_every_form_in_rotating_order(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch = Stopwatch(monkeypatch)
        runs = {name: watch.work(name, 1.0) for name in "abc"}
        taken = time_interleaved(runs, 3)
        assert taken == {name: [1.0] * 3 for name in "abc"}
        warm = WARM_RUNS * 3
        assert "".join(watch.calls[warm:]) == "abc" + "bca" + "cab"

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
    def test_short_forwards_are_repeated_within_a_sample(
        self, monkeypatch: pytest.MonkeyPatch, forward_s: float, repeats: int
    ) -> None:
        watch = Stopwatch(monkeypatch)
        taken = time_interleaved({"a": watch.work("a", forward_s)}, 2)
        assert taken["a"] == pytest.approx([forward_s] * 2, abs=1e-9)
        # Of a slow one it is known how long it takes once it is warm, and caches matter little.
        seen = forward_s < SLOW_S
        assert len(watch.calls) == WARM_RUNS + seen + 2 * (seen + repeats)

    def test_budget_ends_timing_after_a_complete_round(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch = Stopwatch(monkeypatch)
        runs = {"a": watch.work("a", 1.0), "b": watch.work("b", 2.0)}
        taken = time_interleaved(runs, rounds=100, budget_s=8.5)
        assert taken == {"a": [1.0] * 3, "b": [2.0] * 3}


class TestSlow:
    def test_sample_of_delayed_forwards_is_shortened(self, watch: Stopwatch) -> None:
        """Seen to take a tenth of a sample; then each takes more than half of what is slow."""
        quick = [SAMPLE_S / 10] * (WARM_RUNS + 2)
        taken = time_interleaved({A: watch.work(A, *quick, 0.6 * SLOW_S)}, 1)
        assert taken == {A: [pytest.approx(0.6 * SLOW_S)]}
        assert len(watch.calls) == len(quick) + 2


class TestEnough:
    """A decided contest ends early."""

    def test_enough_is_asked_from_the_third_round(self, watch: Stopwatch) -> None:
        asked: list[int] = []

        def enough(seconds: Mapping[str, Sequence[float]]) -> bool:
            asked.append(len(seconds[A]))
            return len(asked) == 2

        found = take_turns({A: watch.work(A, 1.0)}, TimingLimits(21), enough=enough)
        assert asked == [MIN_ROUNDS, MIN_ROUNDS + 1]
        assert found.seconds == {A: [1.0] * (MIN_ROUNDS + 1)}


class TestBusy:
    """Time spent waiting for a core is not counted."""

    def timed(
        self, watch: Stopwatch, limits: TimingLimits, *pairs: tuple[float, float]
    ) -> Timing[str]:
        """One form whose samples compute and wait so long; it is warm, and seen to take 1 ms."""
        untimed = (1 * MS, 0.0)  # before each sample, too
        run = watch.kept_waiting(A, untimed, *(each for pair in pairs for each in (untimed, pair)))
        warm = TimingLimits(limits.rounds, limits.budget_s, warm_runs=0)
        return take_turns({A: run}, warm, threads=1)

    def test_disturbed_sample_is_repeated(self, watch: Stopwatch) -> None:
        """Every second one waits four times as long as it computes."""
        found = self.timed(watch, TimingLimits(3), *[(1.3 * MS, 4 * MS), (1 * MS, 0)] * 3)
        assert found.seconds[A] == pytest.approx([1 * MS] * 3)
        assert found.wait_shares == {A: [0, 0, 0]}
        assert found.is_quiet
        assert found.kept_waiting == pytest.approx(12 / (12 + 3.9 + 3))

    def test_long_sample_is_not_repeated(self, watch: Stopwatch) -> None:
        run = watch.kept_waiting(A, (2 * SLOW_S, SLOW_S))
        found = take_turns({A: run}, TimingLimits(3), threads=1)
        assert len(watch.calls) == WARM_RUNS + 3
        assert found.seconds[A] == pytest.approx([2 * SLOW_S] * 3)
        assert found.is_quiet  # its wait is known, and the rest is as good as undisturbed
        assert found.kept_waiting == pytest.approx(1 / 3)

    def test_longer_timing_ends_with_enough_quiet_samples(self, watch: Stopwatch) -> None:
        """Of four rounds two are disturbed, and none later: eight have three quiet quarters."""
        disturbed = [(1 * MS, 1 * MS)] * 2 * TRIES
        found = self.timed(watch, TimingLimits(4), *disturbed, (1 * MS, 0))
        assert len(found.seconds[A]) == 8
        assert found.is_quiet

    def test_longer_timing_stays_within_the_budget(self, watch: Stopwatch) -> None:
        budget_s = 3.9 * TRIES * (2 + 2) * MS  # four rounds of disturbed samples
        found = self.timed(watch, TimingLimits(99, budget_s), (1 * MS, 1 * MS))
        assert len(found.seconds[A]) == 4 * PATIENCE

    def test_undecided_timing_lasts_longer(self, watch: Stopwatch) -> None:
        """The first sample waited long, and was repeated."""
        quiet = (1 * MS, 0.0)
        waits = (1 * MS, 99 * MS)
        found = take_turns(
            {A: watch.kept_waiting(A, quiet, quiet, waits, quiet)},
            TimingLimits(4, warm_runs=0),
            threads=1,
            enough=lambda seconds: len(seconds[A]) == 7,
        )
        assert found.is_quiet
        assert len(found.seconds[A]) == 7

    def test_disturbed_timing_does_not_end_early(self, watch: Stopwatch) -> None:
        run = watch.kept_waiting(A, (1 * MS, 1 * MS))
        found = take_turns({A: run}, TimingLimits(4), threads=1, enough=lambda _: True)
        assert len(found.seconds[A]) == 4 * PATIENCE

    @pytest.mark.parametrize("threads", [2, None])
    def test_waits_of_parallel_code_are_not_subtracted(
        self, watch: Stopwatch, threads: int | None
    ) -> None:
        run = watch.kept_waiting(A, (SLOW_S, SLOW_S))
        found = take_turns({A: run}, TimingLimits(3), threads=threads)
        assert found.seconds[A] == pytest.approx([2 * SLOW_S] * 3 * PATIENCE)
        assert found.wait_shares[A] == pytest.approx([0.5] * 3 * PATIENCE)

    def test_the_longest_wait_of_any_thread_counts(
        self, watch: Stopwatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One waits half of the time, the other less."""
        monkeypatch.setattr(
            timing, "all_threads", lambda: {1: round(watch.now * 5e8), 2: round(watch.now * 1e8)}
        )
        found = take_turns({A: watch.work(A, SLOW_S)}, TimingLimits(3), threads=2)
        assert found.wait_shares[A] == pytest.approx([0.5] * 3 * PATIENCE)

    def test_threads_started_meanwhile_are_ignored(
        self, watch: Stopwatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads = itertools.count()
        monkeypatch.setattr(timing, "all_threads", lambda: {next(threads): 10**9})
        found = take_turns({A: watch.work(A, 1.0)}, TimingLimits(3), threads=2)
        assert found.is_quiet
        assert found.kept_waiting == 0

    def test_stolen_time_is_counted(
        self, watch: Stopwatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One of each 4 ms, in unknown samples."""
        times = iter((CoreTime(stolen_s=7, busy_s=20), CoreTime(stolen_s=8, busy_s=23)))
        monkeypatch.setattr("models.timing.core_time", lambda: next(times))
        found = take_turns({A: watch.work(A, 0.04)}, TimingLimits(5))
        assert found.kept_waiting == pytest.approx(0.25)
        assert found.is_quiet


class TestWatch:
    @pytest.fixture
    def tasks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name, text in (("7", "11 70 3\n"), ("8", "12 80 3\n"), ("9", "nonsense")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "schedstat").write_text(text)
        (tmp_path / "10").mkdir()  # it ended meanwhile
        monkeypatch.setattr("models.timing.TASKS", tmp_path)
        monkeypatch.setattr("threading.get_native_id", lambda: 8)
        return tmp_path

    def test_waits_are_read_per_thread(self, tasks: Path) -> None:
        assert this_thread() == {8: 80}
        assert all_threads() == {7: 70, 8: 80}

    def test_no_statistics_mean_no_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("models.timing.TASKS", Path("/none"))
        assert this_thread() == all_threads() == {}
        assert take_turns({A: lambda: None}, TimingLimits(3)).is_quiet


def test_share_waited_covers_several_timings() -> None:
    one: Timing[str] = Timing({}, {}, took_s=3.0, waited_s=1.0)
    assert share_waited([one, Timing({}, {}, took_s=1.0)]) == 0.25
    assert share_waited([]) == share_waited([Timing[str]({}, {})]) == 0


@pytest.mark.parametrize(
    ("times", "lasts"), [([5.0], 5), ([9.0, 1.0, 2.0], 1), ([5.0, 4.0, 3.0, 2.0, 1.0], 2)]
)
def test_forward_time_is_the_lower_quartile(times: list[float], lasts: float) -> None:
    assert lasts_s(times) == lasts
