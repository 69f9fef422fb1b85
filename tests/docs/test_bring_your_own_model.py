"""docs/bring-your-own-model.md as it stands: its files, its commands, its answers."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server, running

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/bring-your-own-model.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", DOCUMENT, re.DOTALL)
NEEDED = ("export", "models", "docs/three.png")
SERVE = re.compile(r"TORCHLANE_(\w+)=(\S+) make serve\n")


def write(folder: Path, text: str) -> None:
    """A file whose name stands in its first line."""
    name, content = text.split("\n", 1)
    (folder / name.removeprefix("# ")).write_text(content)


def patch(folder: Path, text: str) -> None:
    """Add each line that begins with + after the one above it, which must be there."""
    name, *lines = text.splitlines()
    file = folder / name.removeprefix("# ")
    for above, line in itertools.pairwise(lines):
        if line.startswith("+"):
            before = file.read_text()
            assert before.count(f"{above[1:]}\n") == 1, above
            file.write_text(before.replace(f"{above[1:]}\n", f"{above[1:]}\n{line[1:]}\n"))


def run(folder: Path, script: str) -> str:
    """What a block prints; the documented environment becomes the one that runs the test."""
    script = script.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    command = ["bash", "-ec", f"export TMPDIR={folder} PYTHONPATH={folder}\n{script}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """All that the document makes, in a copy of the code, in order; then a server of it."""
    folder = tmp_path_factory.mktemp("project")
    for name in NEEDED:
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    for language, text in BLOCKS:
        if language == "python":
            write(folder, text)
        elif language == "diff":
            patch(folder, text)
        elif language == "sh" and "curl" not in text and not SERVE.match(text):
            run(folder, text)
    settings = {name.lower(): value for name, value in SERVE.findall(DOCUMENT)}
    with running(folder / "artifacts", folder / "log", **settings) as server:
        yield server


def questions() -> list[tuple[str, str]]:
    """Each block that calls the server, with the JSON block that follows it."""
    following = itertools.pairwise(BLOCKS)
    return [(text, after) for (_, text), (_, after) in following if "curl" in text]


def close(got: object, wanted: object) -> bool:
    """Equal, but for the last digits of numbers."""
    if isinstance(got, dict) and isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(close(got[key], wanted[key]) for key in got)
    if isinstance(got, list) and isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(close, got, wanted))
    if isinstance(wanted, float):
        return bool(got == pytest.approx(wanted, abs=2e-6))
    return got == wanted


@pytest.mark.soak  # that adopted models and definitions are served is tested without the document
@pytest.mark.parametrize(("script", "answer"), questions())
def test_commands_print_the_documented_answers(server: Server, script: str, answer: str) -> None:
    printed = run(ROOT, script.replace("http://127.0.0.1:8000", server.url))
    assert close(json.loads(printed), json.loads(answer)), printed


def test_the_document_has_two_questions_and_one_start() -> None:
    assert len(questions()) == 2
    assert len(SERVE.findall(DOCUMENT)) == 1
    assert (ROOT / "Makefile").read_text().count("\nserve: ") == 1
