"""docs/training.md: its options are those that there are, and its commands run as they stand."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from export.options.training import add_train
from tests.docs.blocks import ROOT, blocks
from tests.e2e.server import running

TEXT = (ROOT / "docs/training.md").read_text()
COMMANDS = [text for language, text in blocks("docs/training.md") if language == "sh"]


def test_every_option_is_documented() -> None:
    parser = argparse.ArgumentParser()
    add_train(parser)
    there = {name for action in parser._actions for name in action.option_strings}
    documented = set(re.findall(r"`(--[a-z-]+)", TEXT))
    assert there - documented == {"-h", "--help", "--out"}
    of_torchrun = {"--max-restarts", "--nnodes", "--nproc-per-node"}
    assert documented - there <= {"--checkpoint", "--checkpoint-key"} | of_torchrun


def printed(folder: Path, script: str) -> str:
    """What a block prints, in a folder of its own."""
    script = script.replace(".venv/bin/", f"{ROOT}/.venv/bin/")
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak
@pytest.mark.timeout(1800)
class TestCommands:
    def test_train_export_and_serve_commands_work(self, tmp_path: Path) -> None:
        train, export, serve = COMMANDS[0].splitlines()
        assert serve == "make serve"
        assert "export it: torchlane export digits" in printed(tmp_path, train)
        printed(tmp_path, f"{export} --variants script --max-batch-size 2")
        manifest = json.loads((tmp_path / "artifacts/digits/1/manifest.json").read_bytes())
        assert manifest["accuracy"] > 0.98
        assert len(manifest["training"]["epochs"]) == 24
        with running(tmp_path / "artifacts", tmp_path / "log") as server:
            answer = printed(ROOT, f"curl -s {server.url}/predict -F file=@docs/three.png")
        assert json.loads(answer)["prediction"]["label"] == "3"

    def test_torchrun_on_one_machine(self, tmp_path: Path) -> None:
        (script,) = [each for each in COMMANDS if "torchrun" in each]
        assert "epoch 2: loss" in printed(tmp_path, script)
