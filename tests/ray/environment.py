"""An environment with Ray, on top of this checkout's; its packages are in no extra."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
ENVIRONMENT = ROOT / ".ray"
MADE = ENVIRONMENT / REQUIREMENTS.name  # a copy, written last


def environment() -> Path | None:
    """The environment that has Ray; None: there is none of the pinned versions."""
    if MADE.exists() and MADE.read_bytes() == REQUIREMENTS.read_bytes():
        return ENVIRONMENT
    return Path(sys.prefix) if find_spec("ray") is not None else None


def make() -> None:
    """Make the environment anew."""
    venv.create(ENVIRONMENT, clear=True)
    python = ENVIRONMENT / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps")
    subprocess.run([*pip, "--requirement", REQUIREMENTS], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = ENVIRONMENT / "lib" / version / "site-packages"
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    MADE.write_bytes(REQUIREMENTS.read_bytes())
