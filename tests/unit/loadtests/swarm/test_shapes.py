"""Shapes rise and fall as they say, and end."""

from __future__ import annotations

import argparse

import pytest

from loadtests.swarm.shapes import Stages, add_arguments, stages_of, users_at


def parsed(*arguments: str) -> Stages:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return stages_of(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [
        ("--peak-users 9", []),
        ("--shape ramp --peak-users 40", [(4 * step, 10) for step in range(1, 11)]),
        ("--shape ramp --peak-users 3 --step-s 5", [(1, 5), (2, 5), (3, 5)]),
        ("--shape spike --peak-users 40", [(4, 10), (40, 10), (4, 20)]),
        ("--shape spike --peak-users 5 --step-s 3", [(1, 3), (5, 3), (1, 6)]),
        ("--shape soak", [(16, 10), (32, 600)]),
        ("--shape soak --soak-s 7", [(16, 10), (32, 7)]),
    ],
)
def test_shape_defines_its_stages(arguments: str, stages: Stages) -> None:
    assert list(parsed(*arguments.split())) == stages


def test_run_ends_after_the_last_stage() -> None:
    stages = [(2, 10), (5, 20)]
    at = {time_s: users_at(stages, time_s) for time_s in (0.0, 9.9, 10.0, 29.9, 30.0, 1e6)}
    assert at == {0.0: 2, 9.9: 2, 10.0: 5, 29.9: 5, 30.0: None, 1e6: None}
