"""The choice of a version by weights: its shares, and which users a change moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from app.registry.weights import DIGESTED_BYTES, Split, digest_of, split_of

USERS = [b"user-%d" % number for number in range(20_000)]


def split(weights: Mapping[int, float], *, name: str = "m", sticky: str = "body") -> Split:
    """The split if every version is served."""
    made = split_of(name, weights, sticky, weights)
    assert made is not None
    return made


def chosen(weights: Mapping[int, float]) -> list[int]:
    """The version of each user."""
    divided = split(weights)
    return [divided.ranked(user)[0] for user in USERS]


def test_shares_are_those_of_the_weights() -> None:
    divided = split({2: 94, 3: 5, 4: 0, 7: 1})
    counts = Counter(divided.ranked(b"%d" % number)[0] for number in range(100_000))
    assert set(counts) == {2, 3, 7}
    for number, share in ((2, 0.94), (3, 0.05), (7, 0.01)):
        assert divided.shares[number] == share
        assert abs(counts[number] / 100_000 - share) < 0.01


def test_the_choice_is_the_same_in_every_process() -> None:
    divided = split({1: 1, 2: 1, 3: 1})
    assert [divided.ranked(user)[0] for user in USERS[:20]] == [
        *(1, 3, 1, 1, 2, 1, 1, 1, 1, 2),
        *(1, 2, 1, 1, 2, 3, 3, 3, 2, 2),
    ]


def test_models_choose_independently() -> None:
    first, second = (split({1: 1, 2: 1}, name=name) for name in ("a", "b"))
    agree = sum(first.ranked(user) == second.ranked(user) for user in USERS)
    assert abs(agree / len(USERS) - 0.5) < 0.02


def test_a_rollout_in_ten_steps_moves_each_user_once_at_most() -> None:
    before = chosen({2: 100, 3: 0})
    for percent in (1, 2, 5, 10, 20, 35, 50, 75, 90, 100):
        now = chosen({2: 100 - percent, 3: percent})
        moved = {pair for pair in zip(before, now, strict=True) if pair[0] != pair[1]}
        assert moved == {(2, 3)}
        before = now
    assert set(before) == {3}


@pytest.mark.parametrize("changes", [(3, 5), (3, 20), (2, 60), (7, 1), (2, 0), (7, 0), (3, 0.5)])
def test_a_change_of_one_weight_moves_only_users_of_that_version(
    changes: tuple[int, float],
) -> None:
    weights = {2: 80.0, 3: 10.0, 7: 10.0}
    number, weight = changes
    changed = weights | {number: weight}
    moved = [
        pair for pair in zip(chosen(weights), chosen(changed), strict=True) if len({*pair}) > 1
    ]
    grows = weight > weights[number]
    assert {pair[1 if grows else 0] for pair in moved} == {number}
    before, after = (split(each).shares.get(number, 0) for each in (weights, changed))
    assert abs(len(moved) / len(USERS) - abs(after - before)) < 0.01


def test_the_share_of_a_version_that_is_not_served_goes_to_the_others() -> None:
    weights = {2: 60, 3: 10, 7: 30}
    divided = split_of("m", weights, "body", [9, 7, 3])
    assert divided is not None
    assert divided.shares == {7: 0.75, 3: 0.25}
    for user in USERS[:1000]:
        assert divided.ranked(user) == [each for each in split(weights).ranked(user) if each != 2]
    assert divided.problem == (
        "not served, but with a weight: m 2; the other versions get their share; "
        "TORCHLANE_VERSIONS sets which versions are served"
    )
    none = split_of("m", weights, "body", [9])
    assert none is not None
    assert none.ranked(b"x") == []
    assert "m 2, 3, 7; the newest version answers" in str(none.problem)
    assert split({2: 1, 3: 0}).problem is None
    assert split_of("m", {}, "body", [9]) is None


def test_a_weight_that_is_nothing_beside_the_others_counts_as_0() -> None:
    split = split_of("m", {2: 1e9, 3: 1e-320}, "body", [2, 3])
    assert split is not None
    assert split.shares == {2: 1.0}
    assert split.ranked(b"user") == [2]


def test_a_header_is_read_in_lower_case() -> None:
    assert split({1: 1}, sticky="header:X-User").header == b"x-user"
    assert split({1: 1}, sticky="key").header is None


def test_bodies_are_told_apart_also_if_only_their_length_differs() -> None:
    large = 3 * DIGESTED_BYTES
    bodies = [b"", b"a", b"b", b"a" * large, b"a" * (large + 1), b"b" + b"a" * large]
    bodies.append(b"a" * large + b"b")
    assert len({digest_of(body) for body in bodies}) == len(bodies)
