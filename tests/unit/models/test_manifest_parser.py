"""Any content gives a manifest, or a sentence that says what is wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.integrity import IntegrityError, read_artifact
from tests.unit.models.manifests import make_manifest

NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 1e308]),
)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=20)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=20,
)
VALID: dict[str, Any] = json.loads(make_manifest().model_dump_json())


def paths(node: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each value of a JSON document, inner ones too."""
    keys = range(len(node)) if isinstance(node, list) else node if isinstance(node, dict) else ()
    return [here, *(path for key in keys for path in paths(node[key], (*here, key)))]


PATHS = paths(VALID)[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifact")


def read(folder: Path, text: bytes) -> str | None:
    """What is wrong with a manifest; its digest is right, and its files are not there."""
    (folder / "manifest.json").write_bytes(text)
    digest = hashlib.sha256(text).hexdigest()
    (folder / "manifest.sha256").write_text(f"{digest}  manifest.json\n")
    try:
        read_artifact(folder)
    except IntegrityError as error:
        return str(error)
    return None


def check(folder: Path, text: bytes) -> None:
    message = read(folder, text)
    assert message is None or (message.isprintable() and len(message) < 1000)


@settings(max_examples=200)
@given(path=st.sampled_from(PATHS), value=JSON)
def test_manifest_with_one_arbitrary_value_never_crashes(
    folder: Path, path: tuple[Any, ...], value: Any
) -> None:
    document = json.loads(json.dumps(VALID))
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    check(folder, json.dumps(document).encode())


@pytest.mark.parametrize("bomb", ["[" * 100_000, '{"a":' * 100_000, "[" * 50_000 + "]" * 50_000])
def test_deep_nesting(folder: Path, bomb: str) -> None:
    assert read(folder, bomb.encode()) is not None
    text = json.dumps(VALID).replace('"example": [0.5]', f'"example": {bomb}')
    assert bomb in text
    assert read(folder, text.encode()) is not None


@pytest.mark.parametrize("number", ["9" * 5000, "1e999", "-1e999", "NaN", "Infinity"])
def test_extreme_numbers(folder: Path, number: str) -> None:
    text = json.dumps(VALID).replace('"version": 3', f'"version": {number}')
    assert number in text
    message = read(folder, text.encode())
    assert message is not None
    assert message.startswith("manifest.json")
