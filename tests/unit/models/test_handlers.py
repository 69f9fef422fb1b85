"""The contract of handlers: which answers are the same, what packs and unpacks, what is refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from export.pipeline import open_artifact
from models.handlers import (
    HandlerManifest,
    declared_tensors,
    is_same_answer,
    pack_code,
    unpack_code,
)
from models.integrity import IntegrityError, NotAModel, read_any_artifact, read_artifact
from models.system.archive import ArchiveError
from tests.artifacts import change_manifest
from tests.handlers import asks, write_handler

JSON = "application/json"


@pytest.mark.parametrize(
    ("expected", "value", "same"),
    [
        ({"a": [1.0, "x", None, True]}, {"a": [1, "x", None, True]}, True),
        (1.0, 1.0009, True),
        (1.0, 1.002, False),
        (0.0, 0.000009, True),
        (1, True, False),
        ([1], [1, 2], False),
        ({"a": 1}, {"b": 1}, False),
        ("a", "b", False),
    ],
)
def test_numbers_of_answers_may_differ_by_rounding(
    expected: object, value: object, same: bool
) -> None:
    answers = orjson.dumps(expected), orjson.dumps(value)
    assert is_same_answer(*answers, "application/json; charset=utf-8") is same


@pytest.mark.parametrize(
    ("expected", "answer", "media_type", "same"),
    [
        (b"a", b"b", "image/png", True),
        (b"<a/>", b"<b/>", "application/xml", True),
        (b"a", b"a", "text/plain", True),
        (b"a", b"b", "Text/Plain; charset=utf-8", False),
        (b"1", b"1.0", "text/csv", False),
        (b'{"a": 1}', b'{"a":1.0}', "application/geo+JSON; x=y", True),
        (b'{"a": 1}', b'{"a": 2}', "application/geo+json", False),
        (b"1", b"?", JSON, False),
        (b"1", b"[" * 100_000, JSON, False),
        (b"1", b"1" + b"0" * 400, JSON, False),
        (b"1" + b"0" * 400, b"1" + b"0" * 400, JSON, True),
    ],
)
def test_json_and_texts_are_compared(
    expected: bytes, answer: bytes, media_type: str, same: bool
) -> None:
    assert is_same_answer(expected, answer, media_type) is same


def test_a_folder_is_packed_without_hidden_files_and_always_alike(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("shop.py", "lib/util.py", ".git/config", "__pycache__/shop.pyc", "labels.txt"):
        file = source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    code = pack_code(source)
    (source / "shop.py").touch()
    assert pack_code(source) == code
    target.mkdir()
    unpack_code(code, target)
    files = {str(each.relative_to(target)) for each in target.rglob("*") if each.is_file()}
    assert files == {"shop.py", "lib/util.py", "labels.txt"}


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../evil.py", "")
    with pytest.raises(ArchiveError, match="leads out of its folder"):
        unpack_code(packed.getvalue(), tmp_path / "folder")


def written(root: Path) -> Path:
    return write_handler(root, "shop", 1, "", [asks(1, 1)], ("detector",))


def test_what_needs_a_model_refuses_a_handler(tmp_path: Path) -> None:
    folder = written(tmp_path)
    assert isinstance(read_any_artifact(folder).manifest, HandlerManifest)
    with pytest.raises(NotAModel, match="shop/1 is a handler, which has no network"):
        read_artifact(folder)
    with pytest.raises(Exception, match="this needs a model"):
        open_artifact(folder)


def test_bytes_have_one_free_size() -> None:
    with pytest.raises(ValidationError, match="'x': only the first size of bytes can be -1"):
        declared_tensors({"x": ("bytes", ((None, 0, 9),), None, None, None)})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m["files"].pop("handler.zip"), "'handler.zip' has no digest"),
        (lambda m: m["models"].append({"name": "shop"}), "cannot call itself"),
        (lambda m: m["models"].append({"name": "detector", "version": 2}), "named once"),
        (lambda m: m.update(entry="shop"), "entry: String should match pattern"),
        (lambda m: m.update(golden=[]), "golden: Tuple should have at least 1 item"),
    ],
)
def test_wrong_manifests_are_refused(tmp_path: Path, change: Any, why: str) -> None:
    folder = written(tmp_path)
    change_manifest(folder, change)
    with pytest.raises(IntegrityError, match=why):
        read_any_artifact(folder)
