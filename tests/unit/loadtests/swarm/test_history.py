"""Windows and steps hold the very answers that came in them; the plot is drawn from both."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from loadtests.swarm.history import Recorder, Sample, Window, steps
from loadtests.swarm.history_plot import DPI, HEIGHT_INCHES, WIDTH_INCHES, draw


def windows(samples: list[Sample]) -> list[Window]:
    recorder = Recorder()
    for sample in samples:
        recorder.add(sample)
    return recorder.windows


def test_a_window_is_the_difference_of_two_samples() -> None:
    samples = [
        Sample(10.0, 4, {1: 100}),
        Sample(12.0, 4, {1: 150, 2: 50}),
        Sample(14.0, 8, {1: 150, 2: 90}),
    ]
    assert windows(samples) == [Window(2.0, 4, {1: 50, 2: 50}), Window(2.0, None, {2: 40})]


def test_windows_with_few_answers_or_counts_that_began_anew_are_left_out() -> None:
    few = [Sample(0.0, 1, {}), Sample(1.0, 1, {5: 19})]
    anew = [Sample(0.0, 1, {5: 100}), Sample(1.0, 1, {5: 30}), Sample(2.0, 1, {5: 60})]
    at_once = [Sample(1.0, 1, {}), Sample(1.0, 1, {5: 30})]
    assert windows(few) == []
    assert windows(anew) == [Window(1.0, 1, {5: 30})]
    assert windows(at_once) == []


def test_rate_and_percentiles_of_a_window() -> None:
    window = Window(2.0, 1, {10: 50, 20: 45, 30: 4, 40: 1})
    assert (window.requests, window.rate) == (100, 50.0)
    assert [window.percentile_ms(p) for p in (50, 95, 99, 100)] == [10, 20, 30, 40]
    with pytest.raises(ValueError, match="no answer"):
        Window(1.0, 1, {}).percentile_ms(50)


def test_steps_put_windows_of_equal_users_together() -> None:
    found = [
        Window(1.0, 8, {5: 30}),
        Window(1.0, 4, {1: 20}),
        Window(1.0, None, {9: 99}),
        Window(2.0, 8, {5: 10, 7: 20}),
    ]
    assert steps(found) == [Window(1.0, 4, {1: 20}), Window(3.0, 8, {5: 40, 7: 20})]


def test_a_long_run_is_kept_as_its_windows_only() -> None:
    recorder = Recorder()
    for second in range(1000):  # ever more latencies were seen since the start
        counts: dict[float, int] = dict.fromkeys(range(second), 30)
        recorder.add(Sample(float(second), 1, counts))
    assert len(recorder.windows) == 999
    assert {len(window.counts) for window in recorder.windows} == {1}


def test_a_recorder_keeps_what_the_runner_had_counted_then() -> None:
    counts = {3: 10}
    total = SimpleNamespace(response_times=counts)
    runner = SimpleNamespace(stats=SimpleNamespace(total=total), user_count=2)
    recorder = Recorder()
    recorder.take(1.0, runner)
    counts[3] = 40
    recorder.take(2.0, runner)
    assert recorder.windows == [Window(1.0, 2, {3: 30})]


@pytest.mark.parametrize(
    "found",
    [
        [Window(1.0, 4, {2: 300, 9: 5}), Window(1.0, 8, {4: 500, 30: 9}), Window(1, None, {7: 50})],
        [Window(1.0, None, {1: 50})],
        [Window(1.0, 3, {0: 50})],
    ],
)
def test_a_plot_is_a_png_of_its_size_with_ink_on_it(found: list[Window], tmp_path: Path) -> None:
    draw(found, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.format == "PNG"
        assert list(picture.size) == [WIDTH_INCHES * DPI, HEIGHT_INCHES * DPI]
        pixels = np.asarray(picture.convert("RGB"))
    assert ((pixels[..., 0] > 150) & (pixels[..., 1] < 100)).any()  # the red of p99
