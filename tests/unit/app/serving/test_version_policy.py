"""Versions that the policy selects, with requests of an administrator."""

from __future__ import annotations

import pytest

from app.serving.overrides import ALL, Override
from app.serving.version_policy import VersionPolicy, Wanted
from app.types import ModelId

ON_DISK = (7, 5, 3, 1)


def wanted(policy: str, name: str = "m", override: Override | None = None) -> Wanted:
    return VersionPolicy.parse(policy).wanted(name, ON_DISK, override or Override())


@pytest.mark.parametrize(
    ("policy", "candidates", "most"),
    [
        ("latest", (7, 5, 3, 1), 1),
        ("latest:2", (7, 5, 3, 1), 2),
        ("all", (7, 5, 3, 1), 4),
        ("none", (), 0),
        ("other=all;none", (), 0),
        ("3", (3,), 1),
        ("1,3", (3, 1), 2),
        ("3,1,3", (3, 1), 2),
        ("9", (9,), 1),  # missing: loading reports that
    ],
)
def test_policy_chooses_candidates(policy: str, candidates: tuple[int, ...], most: int) -> None:
    assert wanted(policy) == Wanted(candidates, most)


@pytest.mark.parametrize(
    "policy",
    ["", "newest", "latest:0", "0", "01", "1;2", "m=1;m=2", "m=", "=1", "a/b=1", "1,", "-1"],
)
def test_invalid_policy_error_shows_valid_forms(policy: str) -> None:
    with pytest.raises(ValueError, match=r"use `latest`"):
        VersionPolicy.parse(policy)


def test_unloaded_versions_are_not_candidates() -> None:
    override = Override(unloaded=frozenset({ModelId("m", 7), ModelId("other", 5)}))
    assert wanted("latest", override=override) == Wanted((5, 3, 1), 1)
    nothing = Override(unloaded=frozenset({ModelId("m", ALL)}))
    assert wanted("all", override=nothing) == Wanted((), 0)
    assert wanted("1,3", override=nothing) == Wanted((), 0)


def test_loaded_versions_are_served_in_addition() -> None:
    override = Override(loaded=frozenset({ModelId("m", 3), ModelId("m", 9), ModelId("other", 1)}))
    assert wanted("latest", override=override) == Wanted(ON_DISK, 1, extra=(3,))
