"""Digests of every file: every altered byte is found, and the message names the file."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.artifact import digest_of
from models.integrity import IntegrityError, read_artifact
from models.manifest import Manifest
from tests.artifacts import (
    Double,
    change_manifest,
    replace_manifest,
    scripted,
    write_artifact,
    write_manifest,
)

FILES = ("script.pt", "trace.pt", "report.html", "manifest.json", "manifest.sha256")
DIGEST = r"\b[0-9a-f]{64}\b"


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with two variants and a report: do not change."""
    variants = {"script": scripted(Double()), "trace": scripted(Double(), "trace")}
    made = write_artifact(tmp_path_factory.mktemp("out"), "double", variants=variants)
    manifest = read_artifact(made).manifest
    (made / "report.html").write_text("<p>What export measured.</p>")
    files = {**manifest.files, "report.html": digest_of(made / "report.html")}
    write_manifest(made, manifest.model_copy(update={"files": files}))
    return made


@pytest.fixture
def folder(intact: Path, tmp_path: Path) -> Path:
    return shutil.copytree(intact, tmp_path / "double/1")


def rejection(folder: Path) -> str:
    with pytest.raises(IntegrityError) as caught:
        read_artifact(folder)
    return str(caught.value)


def test_intact_artifact_is_read_with_its_digest(folder: Path) -> None:
    manifest, digest, signed_by = read_artifact(folder)
    assert signed_by is None  # not checked
    assert isinstance(manifest, Manifest)
    assert list(manifest.variants) == ["script", "trace"]
    assert digest == hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert {path.name for path in folder.iterdir()} == set(FILES)  # each of them is tried below


@pytest.mark.parametrize(("where", "bit"), [(0.0, 0x01), (0.5, 0x80), (1.0, 0x01)])
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_rejected_with_both_digests(
    folder: Path, name: str, where: float, bit: int
) -> None:
    path = folder / name
    before = digest_of(path).sha256
    data = bytearray(path.read_bytes())
    data[round(where * (len(data) - 1))] ^= bit
    path.write_bytes(data)
    message = rejection(folder)
    assert "the artifact was altered or damaged; export it again" in message
    found = re.findall(DIGEST, message)
    if name == "manifest.sha256":
        now = digest_of(folder / "manifest.json").sha256
        assert message.startswith(f"manifest.json has SHA-256 {now}, manifest.sha256 says ")
    elif name == "manifest.json":
        assert message.startswith(
            f"{name} has SHA-256 {digest_of(path).sha256}, manifest.sha256 says "
        )
        assert found == [digest_of(path).sha256, before]
    else:
        assert message.startswith(
            f"{name} has SHA-256 {digest_of(path).sha256}, the manifest says "
        )
        assert found == [digest_of(path).sha256, before]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_or_a_folder_in_its_place(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert rejection(folder) == f"{name} cannot be read: No such file or directory"
    (folder / name).mkdir()
    assert rejection(folder) == f"{name} cannot be read: Is a directory"


def test_two_swapped_files(folder: Path) -> None:
    first, second = folder / "script.pt", folder / "trace.pt"
    data = b"o" * first.stat().st_size
    second.write_bytes(data)
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    files = {**manifest.files, "trace.pt": digest_of(second)}
    write_manifest(folder, manifest.model_copy(update={"files": files}))
    assert read_artifact(folder)
    kept = first.read_bytes()
    first.write_bytes(data)
    second.write_bytes(kept)
    assert rejection(folder).startswith("script.pt has SHA-256 ")


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_an_unknown_schema_version_names_both(folder: Path, version: object) -> None:
    change_manifest(folder, lambda manifest: manifest.pop("schema_version"))
    assert rejection(folder).startswith("manifest.json has schema_version none, this release reads")
    change_manifest(
        folder, lambda manifest: manifest.update(schema_version=version, is_of="the future")
    )
    assert rejection(folder) == (
        f"manifest.json has schema_version {version!r}, this release reads 2; export the model "
        "with the matching release"
    )


def test_invalid_manifest_error_names_the_field(folder: Path) -> None:
    change_manifest(folder, lambda manifest: manifest["variants"]["trace"].update(format="keras"))
    message = rejection(folder)
    assert message.startswith("manifest.json, variants.trace.format: ")
    assert "'torchscript', 'aotinductor', 'openvino' or 'onnx'" in message


def test_invalid_digest_file_is_not_quoted_in_full(folder: Path) -> None:
    (folder / "manifest.sha256").write_bytes(b"\x1b[2J" + b"z" * 100_000)
    message = rejection(folder)
    assert len(message) < 500
    assert "\x1b" not in message


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "..", ".", "", "/etc/passwd", "a/b", "a/../../secret", "..\\secret"),
        *("C:\\secret", "C:secret", "nul\0.pt", "script.pt\n", ".hidden", "x" * 129, "ä.pt", "~"),
    ],
)
def test_path_as_file_name_is_refused(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("secret")
    change_manifest(folder, lambda m: m["files"].update({name: m["files"]["script.pt"]}))
    message = rejection(folder)
    assert message.startswith("manifest.json, files.")
    assert message.isprintable()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..\\secret", "nul\0.pt"])
def test_path_as_variant_file_is_refused(folder: Path, name: str) -> None:
    change_manifest(folder, lambda m: m["variants"]["trace"].update(file=name))
    assert rejection(folder).startswith("manifest.json, variants.trace.file: ")


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sha256", "manifest.sig"])
def test_manifest_cannot_list_its_own_digest(folder: Path, name: str) -> None:
    change_manifest(folder, lambda m: m["files"].update({name: m["files"]["script.pt"]}))
    assert f"{name} cannot have a digest in the manifest itself" in rejection(folder)


@pytest.mark.parametrize("size", [0, 2**40])
def test_wrong_file_size_is_refused_before_reading(folder: Path, size: int) -> None:
    before = (folder / "script.pt").stat().st_size
    os.truncate(folder / "script.pt", size)  # 1 TiB that would take a quarter of an hour to digest
    assert rejection(folder).startswith(
        f"script.pt has {size} bytes, the manifest says {before}; the artifact was altered"
    )


def test_huge_manifest_is_not_read(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 2**40)
    assert rejection(folder) == (
        "manifest.json has 1,099,511,627,776 bytes; at most 67,108,864 are read"
    )


def with_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """The rejection of an artifact with a changed manifest and the digest that fits it."""
    change_manifest(folder, change)
    return rejection(folder)


def test_manifest_with_many_values_is_not_parsed(folder: Path) -> None:
    told = with_manifest(folder, lambda manifest: manifest.update(golden=[1] * 1_000_000))
    assert re.fullmatch(
        r"manifest.json has about 1,000,\d{3} values; at most 200,000 are read", told
    )


def test_many_mistakes_are_only_counted(folder: Path) -> None:
    told = with_manifest(folder, lambda manifest: manifest.update(golden=[1] * 90_000))
    assert told.startswith("manifest.json has 90,001 mistakes; the artifact was altered or damaged")


def test_deeply_nested_manifest_is_rejected(folder: Path) -> None:
    replace_manifest(folder, '{"example": ' + "[" * 49_000 + "]" * 49_000 + "}")
    assert "recursion limit exceeded" in rejection(folder)


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sha256"])
def test_pipe_instead_of_a_file_is_rejected(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert rejection(folder) == (
        f"{name} is not a regular file but a pipe or a device; put a file there"
    )


def test_invalid_manifest_content_is_not_quoted_in_full(folder: Path) -> None:
    change_manifest(folder, lambda m: m["files"].update({"\x1b[2J" + "z" * 100_000: 1}))
    message = rejection(folder)
    assert len(message) < 1000
    assert message.isprintable()
    change_manifest(folder, lambda m: m.update(schema_version=["z" * 100_000]))
    assert len(rejection(folder)) < 1000


def test_excessive_axis_length_is_a_manifest_error(folder: Path) -> None:
    empty = {"dtype": "float32", "shape": [0, 10**30], "data": ""}
    free = {"name": "x", "dtype": "float32", "shape": [-1, -1, 10**30]}

    def change(manifest: Any) -> None:
        manifest["inputs"] = [free]
        manifest["golden"][0]["inputs"]["x"] = empty

    change_manifest(folder, change)
    assert rejection(folder).startswith("manifest.json, golden.0.inputs.x.shape.1: ")


def test_large_file_is_hashed_in_chunks(folder: Path) -> None:
    (folder / "report.html").write_bytes(bytes(range(256)) * 8192 + b"and some")
    manifest = read_manifest(folder)
    files = {**manifest.files, "report.html": digest_of(folder / "report.html")}
    write_manifest(folder, manifest.model_copy(update={"files": files}))
    assert read_artifact(folder).manifest.files == files


def read_manifest(folder: Path) -> Manifest:
    return Manifest.model_validate_json((folder / "manifest.json").read_bytes())
