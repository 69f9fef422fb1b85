"""Environments of the peers: pinned, and missed with a sentence that helps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loadtests.__main__ import main
from loadtests.bench import environments
from loadtests.bench.environments import (
    PEERS,
    REQUIREMENTS,
    ROOT,
    SetupError,
    check_sources,
    pins,
    why_not,
)
from loadtests.bench.workloads import INFINITY, KSERVE, LITSERVE, MLSERVER, MOSEC, PYTRITON

NEEDING = (MOSEC, LITSERVE, MLSERVER, PYTRITON, KSERVE, INFINITY)


@pytest.mark.parametrize("peer", NEEDING)
def test_requirements_are_pinned_with_our_torch(peer: str) -> None:
    lines = (PEERS / peer / REQUIREMENTS).read_text().splitlines()
    assert all("==" in line for line in lines if not line.startswith("#"))
    assert pins(peer)["torch"] == "2.13.0"
    assert {peer, f"nvidia-{peer}", f"{peer}_emb"} & set(pins(peer))


@pytest.mark.parametrize("peer", NEEDING)
def test_missing_or_outdated_environment_is_reported(
    peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    assert "does not exist; `make bench-peers`" in str(why_not(peer))
    (tmp_path / peer).mkdir()
    shutil.copy(PEERS / peer / REQUIREMENTS, tmp_path / peer)
    assert why_not(peer) is None
    (tmp_path / peer / REQUIREMENTS).write_text("torch==1.0\n")
    assert "has other versions" in str(why_not(peer))


def test_existing_environment_is_not_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    (tmp_path / MOSEC).mkdir()
    shutil.copy(PEERS / MOSEC / REQUIREMENTS, tmp_path / MOSEC)
    assert main(["bench-peers", MOSEC]) == 0
    assert capsys.readouterr().out == "mosec: ready\n"


def test_compiled_server_must_match_the_sources(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no compiled server in .* run `make compiled`"):
        check_sources(tmp_path)
    for name in ("app", "models"):
        shutil.copytree(ROOT / name, tmp_path / name)
    with pytest.raises(SetupError, match="no compiled server"):
        check_sources(tmp_path)  # only sources
    (tmp_path / "app/types.cpython-311-x86_64-linux-gnu.so").touch()
    check_sources(tmp_path)
    native = next((tmp_path / "app").rglob("*.cpp"))
    source = native.read_bytes()
    native.write_bytes(source + b"// of yesterday")
    with pytest.raises(SetupError, match=r"\.cpp has changed since"):
        check_sources(tmp_path)
    native.write_bytes(source)
    with (tmp_path / "app/types.py").open("a") as file:
        file.write("# of yesterday\n")
    with pytest.raises(SetupError, match=r"app/types\.py has changed since .* or use --pure"):
        check_sources(tmp_path)
