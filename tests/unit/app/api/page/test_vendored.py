"""What the page brings of others is what they published."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import app.api.page

PAGE = Path(app.api.page.__file__).parent
VENDORED = tomllib.loads((PAGE / "vendored.toml").read_text())


def test_vendored_files_match_their_published_digests() -> None:
    listed = {name: digest for each in VENDORED.values() for name, digest in each["sha256"].items()}
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (PAGE / "static" / "vendor").iterdir()
    }
    assert found == listed


def test_vendored_packages_have_version_and_licence() -> None:
    for name, package in VENDORED.items():
        script = next(file for file in package["sha256"] if file.endswith(".js"))
        head = (PAGE / "static" / "vendor" / script).read_text()[:200]
        assert f"v{package['version']}" in head
        licence = (PAGE / "static" / "vendor" / f"{name}.LICENSE.txt").read_text()
        assert package["license"] in licence
