"""What is said of dependencies: which are not pinned, which have a known flaw, or nothing."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
audit = SimpleNamespace(**runpy.run_path(str(ROOT / "deploy/audit.py")))
pins = SimpleNamespace(**runpy.run_path(str(ROOT / "deploy/pins.py")))
GOOD = {"name": "attrs", "version": "26.1.0", "vulns": []}
BAD = {
    "name": "werkzeug",
    "version": "0.1",
    "vulns": [
        {"id": "PYSEC-1", "fix_versions": ["0.2", "0.3"], "aliases": []},
        {"id": "PYSEC-2", "fix_versions": [], "aliases": []},
    ],
}
UNKNOWN = {"name": "torch", "skip_reason": "not found"}


def told(*packages: object) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_an_audit_without_vulnerabilities_passes() -> None:
    code, said = audit.verdict(told(GOOD, UNKNOWN), "No known vulnerabilities found")
    assert code == 0
    assert said.splitlines() == [
        "1 packages audited",
        "unknown to the database: torch",
        "no known vulnerability",
    ]


def test_a_vulnerability_is_named_with_its_fix() -> None:
    code, said = audit.verdict(told(GOOD, BAD), "Found 2 known vulnerabilities in 1 package")
    assert code == 1
    assert "werkzeug 0.1: PYSEC-1, fixed in 0.2, 0.3" in said
    assert "werkzeug 0.1: PYSEC-2, fixed in no version yet" in said


@pytest.mark.parametrize("answer", ["", "null", "Traceback", "{}"])
def test_an_audit_without_an_answer_fails(answer: str) -> None:
    code, said = audit.verdict(answer, "Traceback ...\nConnectionError: no route to host\n")
    assert code == 3
    assert said.endswith("could not reach its database: ConnectionError: no route to host")


@pytest.mark.parametrize("packages", [(), (UNKNOWN,)])
def test_an_audit_of_only_unknown_packages_fails(packages: tuple[object, ...]) -> None:
    code, said = audit.verdict(told(*packages), "")
    assert code == 3
    assert said.startswith("not audited: ")


class TestPins:
    def test_package_names_are_normalised_before_comparison(self) -> None:
        pinned = pins.pins(["# why", "", "Flask-Cors==6.0  # of locust", "zope.event==6.2"])
        assert pins.differences(pinned, {"flask_cors": "6.0", "zope-event": "6.2"}) == []

    def test_unpinned_and_mismatched_packages_are_named(self) -> None:
        pinned = {"torch": "2.13.0", "attrs": "26.1.0"}
        installed = {"torch": "2.13.0+cpu", "attrs": "26.2.0", "blake3": "1.0", "pip": "26.0"}
        assert pins.differences(pinned, installed | {"nvidia-cublas-cu13": "13"}) == [
            "attrs 26.2.0 is installed, 26.1.0 is pinned",
            "blake3 1.0 is installed but not pinned",
        ]

    def test_the_command_fails_and_names_the_fix(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "pins.txt").write_text("attrs==0.1\n")
        assert pins.main([str(tmp_path / "pins.txt")]) == 1
        said = capsys.readouterr().err
        assert ", 0.1 is pinned" in said
        assert said.endswith("`make constraints` pins the installed versions\n")
