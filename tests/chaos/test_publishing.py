"""What is published as good answers as `truth` says; what is published as bad never answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.asking_much import LARGE
from tests.chaos.publishing import Damage, publish
from tests.chaos.truth import DEFAULT_MODEL, Item, Mark, answer
from tests.integration.harness import serving, settled


def test_publishing_leaves_no_draft(tmp_path: Path) -> None:
    publish(tmp_path / "models", DEFAULT_MODEL, 1, Damage.MISSING)
    assert [each.name for each in tmp_path.iterdir()] == ["models"]
    assert [each.name for each in (tmp_path / "models").iterdir()] == [DEFAULT_MODEL]


async def test_a_good_version_answers_correctly(tmp_path: Path) -> None:
    root, item = tmp_path / "models", Item(4711, Mark.SLOW)
    publish(root, DEFAULT_MODEL, 3)
    async with serving(root) as api:
        got = (await api.client.post("/predict", json={"input": item.values()})).json()
        assert got["version"] == 3
        assert got["prediction"]["outputs"]["y"] == answer(DEFAULT_MODEL, 3, item)
        for mark, code in ((Mark.POISON, "backend_failed"), (Mark.NAN, "non_finite_output")):
            bad = {"input": Item(4712, mark).values()}
            assert (await api.client.post("/predict", json=bad)).json()["code"] == code


async def test_a_large_answer_repeats_its_numbers(tmp_path: Path) -> None:
    root, item = tmp_path / "models", Item(4711)
    publish(root, LARGE, 1)
    async with serving(root) as api:
        asked = {"input": item.values()}
        got = (await api.client.post(f"/models/{LARGE}/predict", json=asked)).json()
        assert got["prediction"]["outputs"]["y"] == answer(LARGE, 1, item)


@pytest.mark.parametrize("damage", Damage)
async def test_a_bad_version_never_replaces_a_good_one(tmp_path: Path, damage: Damage) -> None:
    root = tmp_path / "models"
    publish(root, DEFAULT_MODEL, 1)
    publish(root, DEFAULT_MODEL, 2, damage)
    async with serving(root) as api:
        await settled(api)
        told = (await api.client.get(f"/models/{DEFAULT_MODEL}")).json()
        assert told["version"] == 1
        states = {each["version"]: each["state"] for each in told["versions"]}
        assert states == {1: "ready", 2: "failed"}
