"""Machine code: whole, of the sources that are there, or a line that says why there is none.

That it answers as the source does is what `make test-compiled` is for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.compile import COMPILED, DECIDING, LOG, NATIVE, digest
from tests.compose.stack import ROOT

PYTHON_TELLS = ("--run", "-c", "import os; print('runs', os.environ.get('PYTHONPATH'))")
FAILS = "#!/bin/sh\necho 'error: no room on the disk' >&2\nexit 1\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout whose files are those that are compiled, but nearly empty."""
    for file in COMPILED:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).with_name("__init__.py").touch()
        (tmp_path / file).write_text("x: int = 1\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "deploy").mkdir()
    for name in (*DECIDING, *NATIVE):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


def compile_(root: Path, *arguments: str, **variables: str) -> tuple[int, str, list[str]]:
    """The exit code, what is printed and the lines that are told."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy/compile.py"), "--root", str(root), *arguments],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.splitlines()


@pytest.fixture
def failing(tmp_path: Path) -> str:
    """A compiler that fails."""
    file = tmp_path / "failing"
    file.write_text(FAILS)
    file.chmod(0o755)
    return str(file)


def test_without_a_compiler_one_line_says_what_to_install_and_python_runs(root: Path) -> None:
    code, printed, told = compile_(root, *PYTHON_TELLS, CXX="/nowhere/c++")
    assert (code, printed) == (0, "runs None\n")
    assert len(told) == 1
    assert "takes more processor time for each request: no compiler /nowhere/c++" in told[0]
    assert "apt install g++ python3-dev" in told[0]
    assert not (root / ".compiled").exists()


def test_a_compiler_that_fails_is_told_with_its_words_before_a_minute_is_spent(
    root: Path, failing: str
) -> None:
    code, printed, told = compile_(root, *PYTHON_TELLS, CC=failing)
    assert (code, printed, len(told)) == (0, "runs None\n", 1)
    assert f"{failing} cannot read Python.h (error: no room on the disk)" in told[0]


def test_where_it_is_required_its_lack_is_a_failure(root: Path, failing: str) -> None:
    code, printed, told = compile_(root, "--required", *PYTHON_TELLS, CC=failing)
    assert (code, printed, len(told)) == (1, "", 1)


def test_a_mistake_in_the_source_leaves_nothing_but_a_log(root: Path) -> None:
    (root / "app/types.py").write_text("x: int = 'no number'\n")
    code, printed, told = compile_(root, *PYTHON_TELLS)
    assert (code, printed, len(told)) == (0, "runs None\n", 2)
    assert told[1].endswith(f"compiling failed; {root / LOG} says why")
    assert "Incompatible types in assignment" in (root / LOG).read_text()
    assert [each.name for each in (root / LOG).parent.iterdir()] == ["log"]
    assert not (root / ".compiled").exists()


@pytest.mark.slow
def test_only_what_has_changed_is_compiled_and_what_was_there_is_found_again(root: Path) -> None:
    (root / ".compiled").mkdir()  # a folder, before it was a link
    assert compile_(root)[2] == [
        "compile: the sources become machine code, which takes a minute or two"
    ]
    first = (root / ".compiled").resolve()
    assert list(first.glob("app/types.*.so"))
    code, printed, told = compile_(root, *PYTHON_TELLS, CC="/nowhere/cc")
    assert (code, printed, told) == (0, f"runs {first}\n", [])

    (root / "app/types.py").write_text("x: int = 2\n")
    code, printed, told = compile_(root, *PYTHON_TELLS, CC="/nowhere/cc")
    assert (code, printed, len(told)) == (0, "runs None\n", 1)  # and not what is no longer there
    (root / "app/types.py").write_text("x: int = 1\n")
    assert compile_(root, *PYTHON_TELLS, CC="/nowhere/cc") == (0, f"runs {first}\n", [])


@pytest.mark.parametrize("name", ["app/types.py", "app/page.js", "models/new.py", *DECIDING])
def test_the_digest_knows_all_that_decides(root: Path, name: str) -> None:
    before = digest(root)
    with (root / name).open("a") as file:
        file.write("\n")
    assert digest(root) != before


def test_the_digest_knows_names_and_nothing_that_running_leaves(root: Path) -> None:
    before = digest(root)
    (root / "app/__pycache__").mkdir()
    (root / "app/__pycache__/types.cpython-311.pyc").touch()
    (root / "app/.types.py.swp").touch()
    assert digest(root) == before
    (root / "app/types.py").rename(root / "app/kinds.py")
    assert digest(root) != before
