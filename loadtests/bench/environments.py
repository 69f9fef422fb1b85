"""The environments of the peers, which `make bench-peers` creates, and of our compiled server."""

from __future__ import annotations

from pathlib import Path

from loadtests.bench.workloads import INFINITY, LITSERVE, MOSEC, PYTRITON
from loadtests.errors import LoadTestError

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(__file__).resolve().parent / "peers"
ENVIRONMENTS = ROOT / ".bench"
COMPILED = ROOT / ".compiled"  # where `make compiled` puts our server
WITH_ENVIRONMENT = (MOSEC, LITSERVE, PYTRITON, INFINITY)  # the others run in ours
REQUIREMENTS = "requirements.txt"


class SetupError(LoadTestError):
    """Our server is not compiled as requested; the message says what to do."""


def python_of(peer: str) -> Path:
    return ENVIRONMENTS / peer / "bin" / "python"


def why_not(peer: str) -> str | None:
    """Say why a peer cannot run and what to do; None if it can."""
    if peer not in WITH_ENVIRONMENT:
        return None
    copy = ENVIRONMENTS / peer / REQUIREMENTS
    if not copy.exists():
        return f"its environment {copy.parent} does not exist; `make bench-peers` creates it"
    if copy.read_bytes() != (PEERS / peer / REQUIREMENTS).read_bytes():
        return f"its environment {copy.parent} has other versions; run `make bench-peers` again"
    return None


def check_sources(package: Path) -> None:
    """Check that a folder has our server, compiled from this checkout's current sources.

    Raises:
        SetupError: if not, with what to do.
    """
    advice = "run `make compiled`, or use --pure, which runs the checkout"
    check_machine_code(package, advice)
    sources = (file for name in ("app", "models") for file in (ROOT / name).rglob("*"))
    for file in sorted(file for file in sources if file.suffix in (".py", ".cpp")):
        copy = package / file.relative_to(ROOT)
        if not copy.exists() or copy.read_bytes() != file.read_bytes():
            raise SetupError(
                f"{file.relative_to(ROOT)} has changed since {package} was built: {advice}"
            )


def check_machine_code(package: Path, advice: str) -> None:
    """Check that a folder has a compiled server, from any sources.

    Raises:
        SetupError: if not, with what to do.
    """
    if not list(package.glob("app/**/*.so")):
        raise SetupError(f"there is no compiled server in {package}: {advice}")


def pins(peer: str) -> dict[str, str]:
    """Return the versions that a peer runs with, by distribution."""
    lines = (PEERS / peer / REQUIREMENTS).read_text().splitlines()
    pairs = (line.partition("==") for line in lines if "==" in line and line[0] != "#")
    return {name.strip(): version.strip() for name, _, version in pairs}
