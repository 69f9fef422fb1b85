"""The report on the terminal."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from export.reports.content import content_of
from export.reports.report import print_report
from models.manifest import Manifest
from tests.unit.export.measured import measured_manifest
from tests.unit.models.manifests import make_manifest


def printed(manifest: Manifest, width: int = 80) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=width), manifest, Path("somewhere/tiny/3"))
    return out.getvalue()


def test_all_content_is_printed() -> None:
    manifest = measured_manifest()
    text = printed(manifest, width=400)
    content = content_of(manifest)
    assert content.title in text
    assert "somewhere/tiny/3" in text
    for word, what in content.facts:
        assert word in text
        assert what in text
    for section in content.sections:
        assert section.title in text
        for line in section.lines:
            assert line in text
        for row in section.rows:
            for cell in row:
                for line in cell.split("\n"):
                    assert line in text


def test_report_fits_80_columns_without_breaking_numbers() -> None:
    text = printed(measured_manifest())
    assert max(len(line) for line in text.splitlines()) <= 80
    for number in ("1,500,000", "79.2-80.8", "1.0e-07"):
        assert number in text


def test_manifest_without_plan_or_accuracy_is_printed() -> None:
    text = printed(make_manifest().model_copy(update={"accuracy": None, "git_commit": None}))
    assert "No form was timed" in text
    assert "held-out accuracy, eager" not in text


def test_markup_and_terminal_commands_stay_text() -> None:
    text = printed(
        measured_manifest(description="[bold]loud[/bold] \x1b[2Jgone \x07", reason="[x]")
    )
    assert "[bold]loud[/bold] ?[2Jgone ?" in text
    assert "[x]" in text
    assert "\x1b" not in text
