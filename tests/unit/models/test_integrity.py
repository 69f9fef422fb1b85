"""Digests over every file: no altered byte gets past them, and the message says which file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.artifact import digest_of
from models.integrity import IntegrityError, read_artifact, sha256_of
from models.manifest import Manifest
from tests.artifacts import Double, scripted, write_artifact, write_manifest

FILES = ("script.pt", "trace.pt", "report.html", "manifest.json", "manifest.sha256")
DIGEST = r"\b[0-9a-f]{64}\b"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An artifact with two variants and a report."""
    variants = {"script": scripted(Double()), "trace": scripted(Double(), "trace")}
    made = write_artifact(tmp_path, "double", variants=variants)
    manifest, _ = read_artifact(made)
    (made / "report.html").write_text("<p>What export measured.</p>")
    files = {**manifest.files, "report.html": digest_of(made / "report.html")}
    write_manifest(made, manifest.model_copy(update={"files": files}))
    return made


def refusal(folder: Path) -> str:
    with pytest.raises(IntegrityError) as caught:
        read_artifact(folder)
    return str(caught.value)


def rewrite(folder: Path, change: Callable[[Any], object]) -> None:
    """Change the manifest as JSON, and give it the right digest."""
    content = json.loads((folder / "manifest.json").read_text())
    change(content)
    replace(folder, json.dumps(content))


def replace(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.sha256").write_text(f"{digest}  manifest.json\n")


def test_an_intact_artifact_and_the_digest_that_stands_for_it(folder: Path) -> None:
    manifest, digest = read_artifact(folder)
    assert isinstance(manifest, Manifest)
    assert list(manifest.variants) == ["script", "trace"]
    assert digest == hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert {path.name for path in folder.iterdir()} == set(FILES)  # each of them is tried below


@pytest.mark.parametrize("bit", [0x01, 0x80])
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_in_any_file_is_refused_with_its_name_and_both_digests(
    folder: Path, name: str, where: float, bit: int
) -> None:
    path = folder / name
    before = sha256_of(path)
    data = bytearray(path.read_bytes())
    data[round(where * (len(data) - 1))] ^= bit
    path.write_bytes(data)
    message = refusal(folder)
    assert "the artifact was altered or damaged, export it again" in message
    found = re.findall(DIGEST, message)
    if name == "manifest.sha256":
        now = sha256_of(folder / "manifest.json")
        assert message.startswith(f"manifest.json has SHA-256 {now}, manifest.sha256 says ")
    elif name == "manifest.json":
        assert message.startswith(f"{name} has SHA-256 {sha256_of(path)}, manifest.sha256 says ")
        assert found == [sha256_of(path), before]
    else:
        assert message.startswith(f"{name} has SHA-256 {sha256_of(path)}, the manifest says ")
        assert found == [sha256_of(path), before]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert refusal(folder) == f"{name} cannot be read: No such file or directory"


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_place_of_a_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    assert refusal(folder) == f"{name} cannot be read: Is a directory"


def test_two_files_that_changed_places(folder: Path) -> None:
    data = b"other bytes"
    first, second = folder / "script.pt", folder / "trace.pt"
    second.write_bytes(data)
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    files = {**manifest.files, "trace.pt": digest_of(second)}
    write_manifest(folder, manifest.model_copy(update={"files": files}))
    assert read_artifact(folder)
    kept = first.read_bytes()
    first.write_bytes(data)
    second.write_bytes(kept)
    assert refusal(folder).startswith("script.pt has SHA-256 ")


def test_a_manifest_without_a_schema_version_is_not_read(folder: Path) -> None:
    rewrite(folder, lambda manifest: manifest.pop("schema_version"))
    assert refusal(folder).startswith("manifest.json has schema_version none, this release reads 2")


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_an_unknown_schema_version_names_both(folder: Path, version: object) -> None:
    rewrite(folder, lambda manifest: manifest.update(schema_version=version, is_of="the future"))
    assert refusal(folder) == (
        f"manifest.json has schema_version {version!r}, this release reads 2; export the model "
        "with the matching release"
    )


def test_a_manifest_that_cannot_be_understood_says_where(folder: Path) -> None:
    rewrite(folder, lambda manifest: manifest["variants"]["trace"].update(format="onnx"))
    message = refusal(folder)
    assert message.startswith("manifest.json, variants.trace.format: ")
    assert "'torchscript' or 'aotinductor'" in message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\0"])
def test_a_manifest_that_is_none_has_no_place_to_name(folder: Path, text: str) -> None:
    replace(folder, text)
    assert refusal(folder).startswith("manifest.json: ")


def test_a_digest_file_that_holds_anything_is_not_repeated_whole(folder: Path) -> None:
    (folder / "manifest.sha256").write_bytes(b"\x1b[2J" + b"z" * 100_000)
    message = refusal(folder)
    assert len(message) < 500
    assert "\x1b" not in message


def test_a_file_name_that_leads_out_of_the_folder_is_refused(folder: Path) -> None:
    (folder.parent / "secret").write_text("secret")
    rewrite(folder, lambda m: m["files"].update({"../secret": m["files"]["script.pt"]}))
    assert refusal(folder).startswith("manifest.json, files.../secret.[key]: ")


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    data = bytes(range(256)) * 8192
    (tmp_path / "large").write_bytes(data)
    assert sha256_of(tmp_path / "large") == hashlib.sha256(data).hexdigest()
    with pytest.raises(IntegrityError, match="none cannot be read: No such file or directory"):
        sha256_of(tmp_path / "none")
