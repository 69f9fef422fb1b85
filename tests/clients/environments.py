"""Environments of clients, whose pins are not ours; each is made once for all workers."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.conftest import Once

ROOT = Path(__file__).resolve().parents[2]


def environment(once: Once, name: str) -> Path:
    """The environment that NAME.txt pins; skips the test where pip cannot install it."""
    requirements = Path(__file__).with_name(f"{name}.txt")

    def fill(folder: Path) -> None:
        venv.create(folder)
        # Most packages are pinned to the versions of our own environment; pip installs the others.
        (packages,) = folder.glob("lib/python3*/site-packages")
        (packages / "ours.pth").write_text(sysconfig.get_path("purelib"))
        pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"))
        how = ("--quiet", "--no-deps", "--no-compile")  # most modules are never imported
        done = subprocess.run(
            [*pip, "install", *how, "--requirement", requirements],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"{name} cannot be installed: {done.stderr[-500:]}")

    return once(name, fill)


def run(environment: Path, *arguments: str | Path) -> str:
    """What the environment's Python prints, started in the root of the checkout."""
    programs = {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}  # generators run others
    done = subprocess.run(
        [environment / "bin" / "python", *arguments],
        cwd=ROOT,
        env=os.environ | programs,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout + done.stderr
