"""Which inputs are kept for an administrator, how much of them, and that processes share them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import orjson
import pytest

from app.backends.selection import Preference, select
from app.codecs.choose import codec_for
from app.errors import BackendFailed
from app.registry.loaded_models import LoadedModel
from app.registry.releases import Shadow
from app.serving.releases import differing
from app.serving.releases.differing import SMALL_BYTES, Comparison, Differing, Entry, Pair, entry_of
from app.shared_file import SharedFile
from app.types import Item, ModelId, Outcome
from tests.unit.models.manifests import make_manifest, spec

SHADOW = Shadow(version=3, share=1.0, keep=3)


def entry(at: float, name: str = "m", nbytes: int = 2, shadow: Shadow = SHADOW) -> Entry:
    return Entry(Pair(ModelId(name, 2), ("a", "b"), shadow), at, b"x" * nbytes)


def compared(numbers: int, outcome: Outcome) -> dict[str, object]:
    """What is kept of an input with so many numbers."""
    manifest = make_manifest(inputs=[spec(shape=(-1, numbers))], outputs=[spec("y")])
    selection = select(manifest, Preference())
    model = LoadedModel(ModelId("m", 2), manifest, codec_for(manifest), selection)
    item = Item({"x": np.arange(numbers, dtype=np.float32)})
    outputs = {"y": np.ones(1, np.float32)}
    both = Comparison(model, model, item, outputs, outcome, "differs")
    found: dict[str, object] = orjson.loads(entry_of(both, SHADOW).content)
    return found


@pytest.fixture
def files() -> Iterator[list[SharedFile]]:
    made = [SharedFile.create() for _ in range(2)]
    yield made
    for file in made:
        file.close()


async def test_the_newest_of_each_model_are_kept() -> None:
    kept = Differing()
    for at in range(5):
        kept.add(entry(at, "m", nbytes=at + 1))
    kept.add(entry(9, "other", nbytes=50))
    assert [len(each) for each in await kept.of("m", SHADOW)] == [5, 4, 3]
    assert [len(each) for each in await kept.of("other", SHADOW)] == [50]


async def test_their_bytes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differing, "MOST_BYTES", 100)
    kept = Differing()
    for at, nbytes in enumerate((40, 50, 30)):
        kept.add(entry(at, nbytes=nbytes))
    assert [len(each) for each in await kept.of("m", SHADOW)] == [30, 50]
    kept.add(entry(9, nbytes=101))  # more than fits
    assert [len(each) for each in await kept.of("m", SHADOW)] == [30, 50]


async def test_those_of_a_pair_that_is_no_longer_compared_are_dropped() -> None:
    kept = Differing()
    for name in ("m", "other"):
        kept.add(entry(1, name))
    kept.keep_only([entry(1, "other").pair])
    assert [len(await kept.of(name, SHADOW)) for name in ("m", "other")] == [0, 1]


async def test_processes_show_what_all_have_kept(files: list[SharedFile]) -> None:
    files[1].put(b"of a process before this one\t1\tx\n")
    first, second = (Differing(files, index) for index in range(2))
    await second.write()
    for at, kept in enumerate((first, second, first, second)):
        kept.add(entry(at, nbytes=at + 1))
        kept.add(entry(at, "other"))
        await kept.write()
    for kept in (first, second):
        assert [len(each) for each in await kept.of("m", SHADOW)] == [4, 3, 2]
        assert await kept.of("m", SHADOW.model_copy(update={"share": 0.5})) == []
    first.keep_only([])
    await first.write()
    assert [len(each) for each in await second.of("m", SHADOW)] == [4, 2]


def test_an_entry_has_a_request_and_both_answers() -> None:
    found = compared(2, {"y": np.zeros(1, np.float32)})
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.0, 1.0]}
    assert found["request"] == {"inputs": [tensor]}
    assert found["prediction"] == {"outputs": {"y": [1.0]}}
    assert found["shadow_prediction"] == {"outputs": {"y": [0.0]}}


def test_an_entry_has_the_error_of_the_shadow() -> None:
    failed = BackendFailed("the model failed on this item")
    assert compared(1, failed)["shadow_prediction"] == {"error": str(failed), "code": failed.code}


def test_large_arrays_are_not_kept() -> None:
    large = SMALL_BYTES // 4 + 1
    found = compared(large, {"y": np.zeros(large, np.float32)})
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, large]}
    assert found["request"] == {"inputs": [tensor]}
    assert (found["prediction"], found["shadow_prediction"]) == ({"outputs": {"y": [1.0]}}, None)
