"""Machine code: whole, of the sources that are there, or a line that says why there is none.

That it answers as the source does is what `make test-compiled` is for.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.compile import (
    BUILDS,
    DIGESTED,
    HELD,
    KEPT,
    CompileError,
    compiled,
    copy_sources,
    digest,
    prune,
    served,
)
from deploy.machine_code import COMPILED, NATIVE
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
    for name in (*DIGESTED, *NATIVE):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


def compile_(root: Path, *arguments: str, **variables: str) -> tuple[int, str, list[str]]:
    """The exit code, what is printed and the lines that are told."""
    process = start(root, *arguments, **variables)
    printed, told = process.communicate()
    return process.returncode, printed, told.splitlines()


def start(root: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "deploy/compile.py"), "--root", str(root), *arguments],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def build(root: Path, name: str, age_s: float = 0) -> Path:
    """A folder that looks like a build."""
    folder = root / BUILDS / name
    folder.mkdir(parents=True)
    (folder / HELD).touch()
    os.utime(folder, (2e9 - age_s, 2e9 - age_s))
    return folder


def wait_until(happened: Callable[[], bool]) -> None:
    """Wait for what another process does; the test has a time limit."""
    while not happened():
        time.sleep(0.05)


@pytest.fixture
def failing(tmp_path: Path) -> str:
    """A compiler that fails."""
    file = tmp_path / "failing"
    file.write_text(FAILS)
    file.chmod(0o755)
    return str(file)


def test_a_missing_compiler_is_reported_and_python_runs(root: Path) -> None:
    code, printed, told = compile_(root, *PYTHON_TELLS, CXX="/nowhere/c++")
    assert (code, printed) == (0, "runs None\n")
    assert len(told) == 1
    assert (
        "takes more CPU time for each request: there is no compiler /nowhere/c++. Fix: " in told[0]
    )
    assert "apt install g++ python3-dev" in told[0]
    assert not (root / ".compiled").exists()


def test_a_failing_compiler_is_an_error_when_required(root: Path, failing: str) -> None:
    code, printed, told = compile_(root, "--required", *PYTHON_TELLS, CC=failing)
    assert (code, printed, len(told)) == (1, "", 1)
    assert "cannot read Python.h" in told[0]


def test_python_runs_if_no_build_can_be_stored(root: Path) -> None:
    (root / BUILDS).touch()  # as in a checkout that may not be written to, which root always may
    code, printed, told = compile_(root, *PYTHON_TELLS)
    assert (code, printed, len(told)) == (0, "runs None\n", 1)
    assert "no build can be stored" in told[0]
    assert f"Fix: make {root / BUILDS} a folder that this user can write to" in told[0]


def test_an_unlinked_build_serves_but_fails_when_required(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError("not your folder")

    folder = build(root, digest(root))
    monkeypatch.setattr(os, "utime", denied)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", denied)
    assert served(root) == folder
    with pytest.raises(CompileError, match="not your folder"):
        compiled(root)


def test_a_first_start_runs_the_sources_and_builds_meanwhile(root: Path) -> None:
    (root / "app/types.py").write_text("x: int = 'no number'\n")  # the compiler ends within seconds
    log = root / BUILDS / f"{digest(root)}.failed"
    code, printed, told = compile_(root, *PYTHON_TELLS)
    assert (code, printed, len(told)) == (0, "runs None\n", 1)
    assert "runs the sources; machine code for the next one is built meanwhile" in told[0]
    wait_until(log.exists)
    assert "Incompatible types in assignment" in log.read_text()
    code, printed, told = compile_(root, *PYTHON_TELLS)
    assert (code, printed, len(told)) == (0, "runs None\n", 1)
    assert f"compiling these sources has failed before. Fix: read {log}" in told[0]


def test_a_failed_build_leaves_only_its_log(root: Path) -> None:
    (root / "app/types.py").write_text("x: int = 'no number'\n")
    log = root / BUILDS / f"{digest(root)}.failed"
    code, _, told = compile_(root)
    assert (code, len(told)) == (0, 2)
    assert told[1].endswith(f"compiling failed. Fix: read {log}, then run `make compiled`")
    assert {each.name for each in (root / BUILDS).iterdir()} == {"lock", log.name}
    assert not (root / ".compiled").exists()
    code, _, told = compile_(root, "--required", CC="/nowhere/cc")
    assert (code, len(told)) == (1, 1)
    assert "there is no compiler /nowhere/cc" in told[0]  # it is tried again


def test_a_build_waits_for_another_and_reuses_it(root: Path) -> None:
    (root / BUILDS).mkdir()
    with (root / BUILDS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = start(root)
        assert second.stderr is not None
        assert second.stderr.readline() == "compile: waiting for another build to end\n"
        folder = build(root, digest(root))
    assert second.communicate() == ("", "")
    assert compile_(root, *PYTHON_TELLS) == (0, f"runs {folder}\n", [])


def test_prune_keeps_builds_that_a_server_uses(root: Path) -> None:
    served = build(root, digest(root))
    server = start(root, "--run", "-c", "print('runs', flush=True); input()")
    assert server.stdout is not None
    assert server.stdout.readline() == "runs\n"
    os.utime(served, (0, 0))
    builds = [build(root, f"{age:032x}", age) for age in range(KEPT + 1)]
    scratch = root / BUILDS / "scratch-of-another"
    scratch.mkdir()

    prune(root / BUILDS)
    assert [each for each in builds if not each.exists()] == builds[KEPT:]
    assert served.exists()
    assert scratch.exists()
    server.communicate("\n")
    prune(root / BUILDS)
    assert not served.exists()


@pytest.mark.soak  # that the sources are compiled is what the wheel's test shows
def test_builds_of_unchanged_sources_are_reused(root: Path) -> None:
    (root / ".compiled").mkdir()  # a folder, before it was a link
    assert compile_(root)[2] == ["compile: compiling the request path (about two minutes)"]
    first = (root / ".compiled").resolve()
    assert list(first.glob("app/types.*.so"))
    code, printed, told = compile_(root, *PYTHON_TELLS, CC="/nowhere/cc")
    assert (code, printed, told) == (0, f"runs {first}\n", [])

    (root / "app/types.py").write_text("x: int = 2\n")
    code, printed, told = compile_(root, *PYTHON_TELLS, CC="/nowhere/cc")
    assert (code, printed, len(told)) == (0, "runs None\n", 1)  # and not what is no longer there
    (root / "app/types.py").write_text("x: int = 1\n")
    assert compile_(root, *PYTHON_TELLS, CC="/nowhere/cc") == (0, f"runs {first}\n", [])


@pytest.mark.parametrize("name", ["app/types.py", "app/page.js", "models/new.py", *DIGESTED])
def test_the_digest_covers_every_input(root: Path, name: str) -> None:
    before = digest(root)
    with (root / name).open("a") as file:
        file.write("\n")
    assert digest(root) != before


def test_definitions_are_not_compiled_but_found(root: Path) -> None:
    (root / "models/definitions").mkdir()
    (root / "models/catalog.py").write_text("CATALOG = 1\n")
    before = digest(root)
    (root / "models/definitions/mine.py").write_text("x = 1\n")
    (root / "models/catalog.py").write_text("CATALOG = 2\n")
    assert digest(root) == before
    copy = root / BUILDS / before
    copy_sources(root, copy)
    assert digest(copy) == before
    assert (copy / "models/definitions/mine.py").read_text() == "x = 1\n"
    assert (copy / "models/catalog.py").read_text() == "CATALOG = 2\n"


def test_the_digest_covers_names_and_ignores_leftovers(root: Path) -> None:
    before = digest(root)
    (root / "app/__pycache__").mkdir()
    (root / "app/__pycache__/types.cpython-311.pyc").touch()
    (root / "app/.types.py.swp").touch()
    assert digest(root) == before
    (root / "app/types.py").rename(root / "app/kinds.py")
    assert digest(root) != before
