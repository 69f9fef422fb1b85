"""What is in the images, and what must not be."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy import sbom
from tests.compose.engine import docker, inspect
from tests.compose.stack import PURE, ROOT, SECRET_MARK, TAG

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800), pytest.mark.usefixtures("rising")]
API, EXPORT, LOAD = (
    f"{name}:{TAG}" for name in ("torchlane", "torchlane-export", "torchlane-load")
)
MIB = 2**20


def run(image: str, *command: str, options: Sequence[str] = ()) -> str:
    return docker("run", "--rm", "--network", "none", *options, image, *command, limit_s=60)


def distributions(image: str) -> set[str]:
    code = "import importlib.metadata as m; print(*(d.name.lower() for d in m.distributions()))"
    return set(run(image, "/opt/venv/bin/python", "-c", code).split())


@pytest.mark.parametrize("image", [API, EXPORT, LOAD])
def test_an_image_is_no_larger_than_documented(image: str) -> None:
    size_mib = inspect(image)["Size"] / MIB
    print(f"{image}: {size_mib:,.0f} MiB")  # noqa: T201  # shown by `make test-compose`
    row = rf"\| `{image.partition(':')[0]}` \| (\d+) \| (\d+) \|"
    (stated,) = re.findall(row, (ROOT / "docs/deploy.md").read_text())
    assert size_mib <= int(stated[1])
    assert size_mib == pytest.approx(int(stated[0]), rel=0.15)  # base images differ


@pytest.mark.parametrize("image", [API, EXPORT, LOAD])
def test_an_image_runs_unprivileged_and_has_labels(image: str) -> None:
    config = inspect(image)["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["tini", "--"]
    labels = config["Labels"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels["org.opencontainers.image.version"] == project["version"]
    for name in ("title", "description", "licenses", "version", "revision"):
        assert labels[f"org.opencontainers.image.{name}"]


def test_the_serving_image_contains_only_what_it_needs() -> None:
    for tool in ("cc", "gcc", "g++", "c++", "ld", "make", "git", "curl"):
        found = run(API, "sh", "-c", f"command -v {tool} || echo none")
        assert found.strip() == "none", tool
    unwanted = {"scikit-learn", "matplotlib", "rich", "locust", "pytest", "mypy", "pip"}
    have = distributions(API)
    assert {"torch", "fastapi", "uvicorn", "torchlane"} <= have
    assert not unwanted & have
    parts = run(API, "sh", "-c", "cd /opt/torchlane/torchlane && ls -d */").split()
    assert set(parts) - {"__pycache__/"} == {"app/", "handlers/", "models/", "torchserve/"}
    says = "from torchlane.app.main import is_compiled; print(is_compiled())"
    assert run(API, "python", "-c", says).strip() == str(os.environ.get(PURE) != "1")
    assert "definitions" not in run(API, "ls", "/opt/torchlane/torchlane/models").split()


def test_the_load_image_has_no_torch_or_server() -> None:
    have = distributions(LOAD)
    assert {"locust", "numpy"} <= have
    assert not {"torch", "fastapi", "uvicorn"} & have
    assert "find-capacity" in run(LOAD, "torchlane", "load", "--help")


def test_the_export_image_has_a_compiler_and_models() -> None:
    assert "digits" in run(EXPORT, "torchlane", "export", "--help")
    assert "g++" in run(EXPORT, "g++", "--version")


def test_usable_cores_respect_the_cpu_limit() -> None:
    code = "from torchlane.models.system.resources import usable_cores; print(usable_cores())"
    assert run(API, "python", "-c", code, options=("--cpus", "1")) == "1\n"


def test_api_and_load_images_have_the_same_version() -> None:
    code = "from importlib.metadata import version; print(version('torchlane'))"
    assert run(API, "python", "-c", code) == run(LOAD, "python", "-c", code) != ""


@pytest.mark.parametrize("image", [API, EXPORT, LOAD])
def test_an_image_does_not_contain_the_build_secret(image: str) -> None:
    """The certificates that the build trusted end with a line that is nowhere in the image."""
    search = "grep -rlF --exclude-dir=proc --exclude-dir=sys %s / 2>/dev/null; true"
    # That one file shows that it would be found.
    script = f"echo {SECRET_MARK} > /tmp/x; {search % SECRET_MARK}"
    assert run(image, "sh", "-c", script) == "/tmp/x\n"
    assert SECRET_MARK not in json.dumps(inspect(image))


@pytest.mark.parametrize("image", [API, EXPORT, LOAD])
def test_every_package_in_an_image_is_pinned(image: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonical(line.partition("==")[0]) for line in lines if "==" in line}
    assert {canonical(name) for name in distributions(image)} - pins == {"torchlane"}


def test_the_bill_of_materials_names_all_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert sbom.main([API]) == 0
    bill = json.loads(capsys.readouterr().out)
    urls = {each["purl"].partition("@")[0] for each in bill["components"]}
    assert {f"pkg:pypi/{canonical(each)}" for each in distributions(API)} <= urls
    assert "pkg:deb/debian/tini" in urls


def canonical(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_a_read_only_container_without_writable_folders_starts(tmp_path: Path) -> None:
    """It serves nothing (there is no artifact), says so, and stays up for its probes."""
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(['torchlane', 'serve'], stderr=subprocess.PIPE, text=True)\n"
        "check = [sys.executable, '-I', '-S', '/opt/healthcheck.py', 'ready']\n"
        "says = ''\n"
        "while 'reasons' not in says:\n"
        "    time.sleep(0.2)\n"
        "    done = subprocess.run(check, stdout=subprocess.PIPE, text=True)\n"
        "    says = done.stdout\n"
        "print(done.returncode, says)\n"
        "p.terminate()\n"
        "print('exit', p.wait(20))\n"
    )
    printed = run(API, "python", "-c", script, options=("--read-only",))
    assert printed.startswith("1 ")
    assert "503" in printed
    assert "exit 0" in printed
