"""What an administrator asks for, in one process and in several."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.types import ModelId
from app.wishes import ALL, Wish, Wishes

ONE, TWO, EVERY = ModelId("m", 1), ModelId("m", 2), ModelId("m", ALL)


@pytest.fixture(params=["alone", "shared"])
def wishes(request: pytest.FixtureRequest, tmp_path: Path) -> Wishes:
    return Wishes(tmp_path / "wishes.json" if request.param == "shared" else None)


def test_nothing_was_asked_for_at_first(wishes: Wishes) -> None:
    assert wishes.now() == Wish()
    assert not wishes.now().forbids(ONE)


def test_what_is_asked_for_adds_up(wishes: Wishes) -> None:
    wishes.unload(TWO)
    wishes.load(ONE)
    assert wishes.reload() == Wish(3, frozenset({ONE}), frozenset({TWO}))
    assert wishes.now().forbids(TWO)
    assert not wishes.now().forbids(ONE)


def test_the_last_word_counts(wishes: Wishes) -> None:
    wishes.load(ONE)
    assert wishes.unload(ONE) == Wish(2, frozenset(), frozenset({ONE}))
    assert wishes.load(ONE) == Wish(3, frozenset({ONE}), frozenset())


def test_a_model_as_a_whole(wishes: Wishes) -> None:
    wishes.load(ONE)
    wishes.unload(EVERY)
    assert wishes.now().forbids(ONE)
    assert wishes.now().loaded == frozenset()
    wishes.load(TWO)  # one version of it is wanted again, so the model is
    assert not wishes.now().forbids(ONE)
    wishes.unload(TWO)
    assert wishes.load(EVERY).unloaded == frozenset()


def test_other_processes_hear_of_it_and_lose_nothing(tmp_path: Path) -> None:
    several = [Wishes(tmp_path / "wishes.json") for _ in range(4)]

    def ask(number: int) -> None:
        several[number % 4].unload(ModelId("m", number + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(40)))
    assert all(len(each.now().unloaded) == 40 for each in several)
    assert several[0].now().asked == 40
    assert Wishes(tmp_path / "wishes.json").now() == several[0].now()  # of a worker that is new
