"""What a release gives each version, and which releases make no sense."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.registry.releases import Phase, Release, Stage, release_weights

RELEASE = Release(to=3, steps=[1, 10, 100])


def stage(**changes: Any) -> Stage:
    return Stage(release=RELEASE, old=2, since=0.0).changed(0.0, **changes)


def test_each_step_has_its_share() -> None:
    for step, percent in enumerate(RELEASE.steps):
        weights = release_weights(RELEASE, stage(step=step), [2, 3])
        assert weights == {2: 100 - percent, 3: percent}
    assert release_weights(RELEASE, stage(step=1, phase=Phase.PAUSED), [2, 3]) == {2: 90, 3: 10}
    assert release_weights(RELEASE, stage(step=1, phase=Phase.ROLLED_BACK), [2, 3])[3] == 0


def test_before_it_begins_the_new_version_gets_nothing() -> None:
    assert release_weights(RELEASE, None, [1, 2, 3]) == {2: 100, 3: 0}


def test_versions_that_appear_later_get_nothing() -> None:
    assert release_weights(RELEASE, stage(step=1), [2, 3, 4]) == {2: 90, 3: 10}


def test_a_version_that_is_not_served_leaves_its_share_to_the_others() -> None:
    assert release_weights(RELEASE, stage(), [2]) == {2: 99}
    assert release_weights(RELEASE, stage(), [1, 3]) == {1: 99, 3: 1}
    assert release_weights(RELEASE, stage(), [3]) == {3: 1}


def test_the_next_release_keeps_the_version_that_serves() -> None:
    following = Release(to=4)
    for phase, old in ((Phase.COMPLETED, 3), (Phase.ROLLED_BACK, 2), (Phase.RUNNING, 2)):
        weights = release_weights(following, stage(phase=phase), [2, 3, 4])
        assert weights == {old: 100, 4: 0}
    chosen = Release.model_validate({"to": 4, "from": 1})
    assert release_weights(chosen, stage(), [1, 2, 3, 4]) == {1: 100, 4: 0}


def test_it_waits_for_its_versions() -> None:
    assert RELEASE.problem([2, 3]) is None
    assert "version 3 is not served" in str(RELEASE.problem([2]))
    assert "no other version than 3 is served" in str(RELEASE.problem([3]))
    chosen = Release.model_validate({"to": 3, "from": 1})
    assert "version 1 is not served" in str(chosen.problem([2, 3]))


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"steps": [1, 50]}, "steps must rise and end with 100"),
        ({"steps": [10, 1, 100]}, "steps must rise"),
        ({"steps": [10, 10, 100]}, "steps must rise"),
        ({"steps": []}, "at least 1 item"),
        ({"steps": [0, 100]}, "greater than 0"),
        ({"steps": [100, 101]}, "less than or equal to 100"),
        ({"every_s": 0}, "greater than 0"),
        ({"from": 3}, "must be different versions"),
        ({"stop_if": {"errors_above": -1}}, "greater than or equal to 0"),
        ({"stop_if": {"latency_above": 0.5}}, "greater than or equal to 1"),
        ({"stop_if": {"min_requests": 0}}, "greater than or equal to 1"),
        ({"stop_if": {"errors": 1}}, "Extra inputs"),
    ],
)
def test_nonsense_is_refused(found: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Release.model_validate({"to": 3, **found})
