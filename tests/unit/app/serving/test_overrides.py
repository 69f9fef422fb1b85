"""Requests of an administrator, in one process and in several."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.serving.overrides import ALL, Override, Overrides
from app.shared_file import SharedFile
from app.types import ModelId

ONE, TWO, EVERY = ModelId("m", 1), ModelId("m", 2), ModelId("m", ALL)


@pytest.fixture
def file() -> Iterator[SharedFile]:
    made = SharedFile.create()
    yield made
    made.close()


@pytest.fixture(params=["alone", "shared"])
def overrides(request: pytest.FixtureRequest, file: SharedFile) -> Overrides:
    return Overrides(file if request.param == "shared" else None)


def test_overrides_add_up(overrides: Overrides) -> None:
    overrides.unload(TWO)
    overrides.load(ONE)
    assert overrides.reload() == Override(3, frozenset({ONE}), frozenset({TWO}))
    assert overrides.now().forbids(TWO)
    assert not overrides.now().forbids(ONE)


def test_override_may_cover_all_versions(overrides: Overrides) -> None:
    overrides.load(ONE)
    overrides.unload(EVERY)
    assert overrides.now().forbids(ONE)
    assert overrides.now().loaded == frozenset()
    overrides.load(TWO)  # one version of it is wanted again, so the model is
    assert not overrides.now().forbids(ONE)
    overrides.unload(TWO)
    assert overrides.load(EVERY).unloaded == frozenset()


def test_processes_share_overrides_without_loss(file: SharedFile) -> None:
    several = [Overrides(file) for _ in range(4)]

    def ask(number: int) -> None:
        several[number % 4].unload(ModelId("m", number + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(40)))
    assert all(len(each.now().unloaded) == 40 for each in several)
    assert several[0].now().asked == 40
    assert Overrides(file).now() == several[0].now()  # of a worker that is new
