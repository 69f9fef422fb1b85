"""One figure that is off by much is an accident, three in a row are not."""

from __future__ import annotations

import pytest

from app.engine.in_a_row import InARow


@pytest.mark.parametrize(
    ("figures", "too_long", "mildest"),
    [([9.0, 3.0, 70.0], True, 3.0), ([0.1, 0.01, 0.4], False, 0.4)],
)
def test_of_three_in_a_row_the_mildest_is_believed(
    figures: list[float], too_long: bool, mildest: float
) -> None:
    row = InARow()
    assert [row.add(figure, too_long=too_long) for figure in figures] == [None, None, mildest]


def test_a_new_row_begins_once_one_was_believed() -> None:
    row = InARow()
    assert [row.add(figure, too_long=True) for figure in (2.0, 2.0, 2.0, 5.0, 6.0, 7.0)] == [
        *(None, None, 2.0),
        *(None, None, 5.0),
    ]


def test_one_that_is_as_expected_ends_a_row() -> None:
    row = InARow()
    row.add(2.0, too_long=True)
    row.add(2.0, too_long=True)
    row.end()
    assert row.add(2.0, too_long=True) is None


def test_one_to_the_other_side_ends_a_row_and_begins_another() -> None:
    row = InARow()
    row.add(2.0, too_long=True)
    row.add(2.0, too_long=True)
    assert row.add(0.5, too_long=False) is None
    assert row.add(0.5, too_long=False) is None
    assert row.add(0.6, too_long=False) == 0.6
