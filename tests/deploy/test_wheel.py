"""What `make wheels` makes: a wheel with machine code, one of Python alone, and the source.

The machine code is that of `make setup`, unless the sources have changed since.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.version import Version

from deploy.compile import COMPILED, NATIVE, CompileError, check_compilers
from tests.compose.stack import ROOT
from tests.e2e.server import Server, free_port, wait_ready

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME = f"torchlane-{PROJECT['project']['version']}"


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


@pytest.mark.slow
@pytest.mark.timeout(900)  # compiling takes minutes on a busy machine
def test_an_installed_wheel_runs_machine_code(tmp_path: Path, repository: Path) -> None:
    try:
        check_compilers()
    except CompileError as error:
        pytest.skip(str(error))
    wheel, _ = build("wheel", tmp_path / "dist", TORCHLANE_PURE="0")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name.startswith(f"{NAME}-{python}-{python}-linux_")
    folder = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(folder), str(wheel)], check=True)
    modules = [Path(each).with_suffix("") for each in (*COMPILED, *NATIVE)]
    assert [each for each in modules if not list(folder.glob(f"{each}.*.so"))] == []

    port, log = free_port(), tmp_path / "log"
    environment = dict(os.environ) | {
        "PYTHONPATH": str(folder),
        "TORCHLANE_DEVICES": "cpu",
        "TORCHLANE_LOG_FORMAT": "json",
        "TORCHLANE_MODEL_DIR": str(repository),
        "TORCHLANE_PORT": str(port),
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "app"], cwd=tmp_path, env=environment, stdout=file, stderr=file
        )
    try:
        server = Server(process, port, log)
        wait_ready(server)
        (info,) = (line for line in server.scrape() if line.startswith("torchlane_build_info{"))
        assert 'compiled="true"' in info
        assert '"runs": "machine code"' in server.log
        assert "native_reader_not_loaded" not in server.log
    finally:
        process.kill()
        process.wait()


def test_without_a_compiler_the_wheel_is_pure_python(
    tmp_path: Path,
) -> None:
    sources, _ = build("sdist", tmp_path / "sources")
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / NAME
    assert not (folder / ".compiled").exists()
    wheel, said = build("wheel", tmp_path / "dist", folder, CC="/nowhere/cc", CXX="/nowhere/c++")
    assert "a wheel without machine code: there is no compiler /nowhere/cc" in said
    assert wheel.name == f"{NAME}-py3-none-any.whl"
    inside = ZipFile(wheel).namelist()
    assert "app/main.py" in inside
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
