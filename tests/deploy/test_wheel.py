"""What `make wheels` makes: a wheel with machine code, one of Python alone, and the source."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import httpx
import pytest
from packaging.version import Version

from deploy.compile import CompileError, check_compilers
from deploy.machine_code import COMPILED, NATIVE, NATIVE_OF_TORCH
from tests.compose.stack import ROOT
from tests.e2e.server import PLAIN, Server, free_port, wait_ready

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME = f"torchlane-{PROJECT['project']['version']}"
PURE = "-py3-none-any.whl"
DIST = "DIST"  # a variable: a folder with the wheels to test, as `make wheels` makes them


def build(target: str, folder: Path, root: Path = ROOT, **variables: str) -> tuple[Path, str]:
    """What hatchling makes of a checkout in the environment of the tests, and what it says."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "--target",
            target,
            "--directory",
            str(folder),
        ],
        cwd=root,
        env={k: v for k, v in os.environ.items() if k != "TORCHLANE_PURE"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made, done.stderr


class Installed(NamedTuple):
    """A wheel in an environment of its own, and a folder of a user's whose names are hostile."""

    wheel: Path
    python: Path
    folder: Path
    is_compiled: bool

    def run(self, *command: str | Path) -> str:
        """What a command of the environment prints."""
        done = subprocess.run(
            [self.python.parent / command[0], *command[1:]],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def environment(self) -> dict[str, str]:
        """Variables that lead to no checkout."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHLANE_", "PYTHON"))}
        return kept | {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.fixture(
    scope="module",
    params=["1", pytest.param("0", marks=pytest.mark.soak)],
    ids=["pure", "compiled"],
)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """The wheel, installed beside what the tests' own environment has."""
    if request.param == "0":
        try:
            check_compilers()
        except CompileError as error:
            pytest.skip(str(error))
    root = tmp_path_factory.mktemp("wheel")
    if (built := os.environ.get(DIST)) is None:
        wheel, _ = build("wheel", root / "dist", TORCHLANE_PURE=request.param)
    else:
        wheels = {("1" if PURE in each.name else "0"): each for each in Path(built).glob("*.whl")}
        wheel = wheels[request.param]
    venv.create(root / "env")
    python = root / "env" / "bin" / "python"
    # Packages in a folder that a .pth file names; that folder's own .pth files are not read, so
    # this checkout is not found.
    (packages,) = (root / "env").glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], check=True)
    folder = root / "work"
    for name in ("app", "models", "export", "loadtests"):
        package = folder / name if name in ("app", "export") else folder
        package.mkdir(parents=True, exist_ok=True)
        file = package / "__init__.py" if package != folder else folder / f"{name}.py"
        file.write_text("raise SystemExit('this is the package of the user')\n")
    return Installed(wheel, python, folder, request.param == "0")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist."""
    if (built := os.environ.get(DIST)) is not None:
        return Path(built) / f"{NAME}.tar.gz"
    return build("sdist", tmp_path_factory.mktemp("sources") / "dist")[0]


def test_a_wheel_contains_one_package(installed: Installed) -> None:
    (packages,) = installed.python.parent.parent.glob("lib/python3*/site-packages")
    names = {each.name for each in packages.iterdir()}
    assert names == {"torchlane", f"{NAME}.dist-info", "dependencies.pth"}
    assert "py.typed" in {each.name for each in (packages / "torchlane").iterdir()}
    files = (*COMPILED, *NATIVE, *NATIVE_OF_TORCH)
    modules = [packages / "torchlane" / Path(each).with_suffix("") for each in files]
    machine_code = [each for each in modules if list(each.parent.glob(f"{each.name}.*.so"))]
    assert machine_code == (modules if installed.is_compiled else [])


def test_an_index_accepts_wheel_and_sources(installed: Installed, sources: Path) -> None:
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict"]
    done = subprocess.run(
        [*command, installed.wheel, sources], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": PASSED") == 2


def test_users_packages_are_theirs(installed: Installed) -> None:
    for name in ("app", "models", "export", "loadtests"):
        code = f"try: import {name}\nexcept SystemExit as said: print(said)"
        assert installed.run("python", "-c", code) == "this is the package of the user\n"


@pytest.mark.slow
@pytest.mark.timeout(900)  # compiling takes minutes on a busy machine
def test_every_program_of_an_installed_wheel_runs(installed: Installed) -> None:
    quick = ("--variants", "script", "--threads", "1", "--max-batch-size", "2")
    installed.run("torchlane", "export", "pairwise", *quick)
    assert "pairwise/1: intact" in installed.run("torchlane", "doctor")
    rows = [{"input": {"a": [[0.0, 0.0]], "b": [[3.0, 4.0]]}}] * 3
    (installed.folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    score = ("torchlane", "score", "pairwise", "rows.jsonl", "--out", "scored")
    installed.run(*score, "--workers", "1", "--format", "jsonl")
    (shard,) = (installed.folder / "scored").glob("*.jsonl")
    assert len(shard.read_text().splitlines()) == len(rows)

    port, log = free_port(), installed.folder / "log"
    with log.open("wb") as file:
        serve = [str(installed.python.parent / "torchlane"), "serve", "--port", str(port)]
        process = subprocess.Popen(
            [*serve, "--workers", "2", "--log-format", "json"],
            cwd=installed.folder,
            env=installed.environment(),
            stdout=file,
            stderr=file,
        )
    try:
        server = Server(process, port, log)
        wait_ready(server)
        answer = httpx.post(f"{server.url}/predict", json=rows[0], verify=PLAIN)
        assert answer.json()["prediction"]["outputs"]["distances"] == [[25.0]]
        (info,) = (line for line in server.scrape() if line.startswith("torchlane_build_info{"))
        assert f'compiled="{str(installed.is_compiled).lower()}"' in info
        load = ("torchlane", "load", "run", "--url", server.url, "--rate", "20", "--seconds", "1")
        installed.run(*load, "--model", "pairwise")
        swarm = ("torchlane", "load", "locust", "--headless", "--host", server.url, "--users", "2")
        installed.run(*swarm, "--run-time", "3s", "--model", "pairwise", "RepeatedSingles")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_without_a_compiler_the_wheel_is_pure_python(tmp_path: Path, sources: Path) -> None:
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / NAME
    assert not (folder / ".compiled").exists()
    wheel, said = build("wheel", tmp_path / "dist", folder, CC="/nowhere/cc", CXX="/nowhere/c++")
    assert "a wheel without machine code: there is no compiler /nowhere/cc" in said
    assert wheel.name == f"{NAME}{PURE}"
    inside = ZipFile(wheel).namelist()
    assert "torchlane/app/main.py" in inside
    assert [each for each in inside if each.endswith((".so", ".pyd"))] == []


def test_the_oldest_and_the_newest_supported_torch_are_tested() -> None:
    (supported,) = (each for each in PROJECT["project"]["dependencies"] if each.startswith("torch"))
    (pinned,) = re.findall("^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    (newest,) = re.findall("^TORCH \\?= (.*)$", (ROOT / "Makefile").read_text(), re.M)
    first, after = (Version(each) for each in re.findall(r"[0-9.]+", supported))
    assert supported == f"torch>={first},<{after}"
    assert (Version(pinned).release[:2], Version(newest).minor + 1) == (first.release, after.minor)


def test_wheels_are_built_for_every_supported_python() -> None:
    built = PROJECT["tool"]["cibuildwheel"]["build"].split()
    assert built == [f"cp3{minor}-manylinux_*" for minor in (11, 12, 13)]
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.14"
