"""Shapes rise and fall as they say, and end."""

from __future__ import annotations

import argparse

import pytest

from loadtests.swarm.shapes import SHAPES, Size, Stage, add_arguments, asked_for, users_at

SIZE = Size(peak_users=40, step_s=10, soak_s=600)


def test_a_ramp_has_ten_equal_steps() -> None:
    assert SHAPES["ramp"](SIZE) == [Stage(4 * step, 10) for step in range(1, 11)]


def test_a_small_ramp_has_a_step_per_user() -> None:
    stages = SHAPES["ramp"](Size(3, 5, 600))
    assert [stage.users for stage in stages] == [1, 2, 3]


def test_a_spike_rises_at_once_and_gives_time_to_come_back() -> None:
    assert SHAPES["spike"](SIZE) == [Stage(4, 10), Stage(40, 10), Stage(4, 20)]
    assert SHAPES["spike"](Size(5, 10, 600))[0].users == 1


def test_a_soak_holds_its_peak() -> None:
    assert SHAPES["soak"](SIZE) == [Stage(20, 10), Stage(40, 600)]


def test_stages_follow_each_other_and_then_the_run_ends() -> None:
    stages = [Stage(2, 10), Stage(5, 20)]
    at = {time_s: users_at(stages, time_s) for time_s in (0.0, 9.9, 10.0, 29.9, 30.0, 1e6)}
    assert at == {0.0: 2, 9.9: 2, 10.0: 5, 29.9: 5, 30.0: None, 1e6: None}


def parsed(*arguments: str) -> list[Stage]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return asked_for(parser.parse_args(arguments))


def test_a_shape_and_its_size_come_from_the_command_line() -> None:
    assert parsed() == []
    assert parsed("--peak-users", "9") == []
    assert parsed("--shape", "spike", "--peak-users", "20", "--step-s", "3") == [
        Stage(2, 3),
        Stage(20, 3),
        Stage(2, 6),
    ]
    assert parsed("--shape", "soak", "--soak-s", "7")[-1] == Stage(32, 7)


@pytest.mark.parametrize("arguments", [("--peak-users", "0"), ("--step-s", "x"), ("--shape", "z")])
def test_sizes_that_make_no_sense_are_refused(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(*arguments)
    assert arguments[1] in capsys.readouterr().err
