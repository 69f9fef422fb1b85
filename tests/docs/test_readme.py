"""The examples of the README and of requests.md, run as they stand against a real server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, curl_blocks
from tests.e2e.server import Server, running

REQUESTS = "docs/requests.md"


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(
        repository, tmp_path_factory.mktemp("readme") / "log", default_model="digits"
    ) as server:
        yield server


def run(server: Server, script: str) -> str:
    """What a block prints; the documented address becomes the test server's."""
    script = script.replace("http://127.0.0.1:8000", server.url)
    command = ["bash", "-ec", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("script", "printed"), [*curl_blocks(), *curl_blocks(REQUESTS)])
def test_commands_print_the_documented_answers(
    server: Server, script: str, printed: str | None
) -> None:
    output = run(server, script)
    assert '"code"' not in output
    if printed is not None:
        assert json.loads(output) == json.loads(printed)


def test_a_repeated_picture_is_a_cache_hit(server: Server) -> None:
    script = next(text for text, _ in curl_blocks() if "-F file=" in text)
    run(server, script)
    output = run(server, script)
    assert '"label":"3"' in output
    assert "x-torchlane-cache: hit" in output.lower()


def test_the_batch_keeps_its_order(repository: Path, tmp_path: Path) -> None:
    """With a server of its own: nothing is in the cache yet."""
    script = next(text for text, _ in curl_blocks(REQUESTS) if "batch-predict" in text)
    with running(repository, tmp_path / "log", default_model="digits") as server:
        output = run(server, script)
        labels = re.findall(r'"label":"(\d)"', output)
        assert labels == ["3", "7", "3", "3"]
        assert "hit=0, miss=2, joined=2" in output
        assert server.metric("torchlane_items_computed_total") == 2


def test_every_make_target_in_the_readme_exists() -> None:
    named = r"^make ([a-z-]+)|`make ([a-z-]+)"
    found = re.findall(named, (ROOT / "README.md").read_text(), re.MULTILINE)
    targets = {first or second for first, second in found}
    assert len(targets) > 5
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets - known == set()
