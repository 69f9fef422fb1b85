"""The commands of docs/text.md, run as they stand against a real server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.docs.blocks import curl_blocks
from tests.docs.test_readme import run
from tests.e2e.server import running
from tests.texts import write_text

(COMMANDS,) = (script for script, _ in curl_blocks("docs/text.md"))


def test_the_commands_work(tmp_path: Path) -> None:
    write_text(tmp_path / "models")
    calls = COMMANDS.replace("\\\n", "").strip().splitlines()
    with running(tmp_path / "models", tmp_path / "log") as server:
        one, many, plain = (json.loads(run(server, call)) for call in calls)
    assert one == plain
    assert many["predictions"][0] == one["prediction"]
    assert "outputs" in many["predictions"][1]
