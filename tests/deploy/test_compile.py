"""Compiling the request path; that it answers alike is what `make test-compiled` is for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.compose.stack import ROOT

SCRIPT = ROOT / "deploy/compile.py"


def test_a_folder_without_the_server_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"{tmp_path} lacks app/access/guard.py, " in done.stderr


def test_a_mistake_in_the_source_fails_with_what_was_said(tmp_path: Path) -> None:
    for file in compiled_files():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).with_name("__init__.py").touch()
        (tmp_path / file).write_text("x: int = 1\n")
    (tmp_path / "app/types.py").write_text("x: int = 'no number'\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Incompatible types in assignment" in done.stdout + done.stderr
    assert not list(tmp_path.glob("**/*.so"))


def compiled_files() -> list[str]:
    """What the script compiles, as it says itself."""
    code = "import compile; print(*compile.COMPILED, *compile.NATIVE)"
    folder = str(SCRIPT.parent)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()
