"""Git ignores whatever the documents have people make in their checkout: above all keys."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.docs.blocks import ROOT, blocks

MADE = re.compile(
    r"(?<![->])>>? ?([\w.-]+)"  # redirected output
    r"|\bmkdir (?:-p )?(?!-)([\w.-]+)"
    r"|\b(?:keygen|adopt) ([\w./-]+)"
    r"|--(?:key|labels|plot|html|csv|out|extra-files) (?!\w+://)([\w.-][\w./-]*)"
    r"|_(?:KEYS_FILE|PASSWORD_FILE|MODELS_FILE)=(?:\./)?([\w./-]+)"
    r"|\bcp [\w-]+:\S+ ([\w.-]+)"
    r'|\.save\("(.+?)"\)'
    r"|^# (make_\w+\.py)$",
    re.MULTILINE,
)


def made() -> set[str]:
    """Every file that a code block of the README and docs/ makes, or wants to be there."""
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    code = "\n".join(text for each in documents for _, text in blocks(str(each.relative_to(ROOT))))
    return {next(filter(None, match.groups())) for match in MADE.finditer(code)}


def git(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "not a git repository" in done.stderr:
        pytest.skip("this is no git checkout")
    return done.stdout.splitlines()


def test_files_made_by_documented_commands_are_ignored() -> None:
    files = made() | {"release.pub.pem", "new.pub.pem", "models.toml", "deep/in/a/folder/x.pem"}
    assert {"release.pem", "api-keys", "keys", "colours.pt", "password"} <= files
    assert files - set(git("check-ignore", "--no-index", *files)) == set()


def test_no_tracked_file_is_ignored() -> None:
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == []
