"""docs/signing.md as it stands: its commands, and the words of refusals that it explains."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models.integrity import read_artifact
from models.signatures import TrustedKeys
from tests.artifacts import write_artifact
from tests.docs.blocks import ROOT, blocks

DOCUMENT = "docs/signing.md"


@pytest.mark.soak  # tests/e2e/test_signing.py does the same, and serves it
def test_commands_make_a_signed_artifact_and_trusted_keys(tmp_path: Path) -> None:
    write_artifact(tmp_path / "artifacts", "digits")
    commands = "".join(text for language, text in blocks(DOCUMENT) if language == "sh")
    assert commands.count("TORCHLANE_TRUSTED_KEYS=keys make serve\n") == 1
    script = commands.replace("TORCHLANE_TRUSTED_KEYS=keys make serve\n", "")
    script = script.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    trusted = TrustedKeys.read(tmp_path / "keys")
    assert list(trusted.origins.values()) == ["release.pub.pem"]
    signed = read_artifact(tmp_path / "artifacts/digits/2", verifier=trusted)
    assert signed.signed_by in trusted.origins


def test_documented_refusals_exist_in_the_code() -> None:
    text = (ROOT / DOCUMENT).read_text()
    rows = re.findall(r"^\| ((?:it is|is|manifest)[^|]*) \|", text, re.MULTILINE)
    code = "".join(
        re.sub(r'"\s*f?"', "", (ROOT / "models" / name).read_text())
        for name in ("signatures.py", "system/contained.py")
    )
    code = code.replace("{SIGNATURE_FILE}", "manifest.sig").replace(
        "{MANIFEST_FILE}", "manifest.json"
    )
    assert len(rows) == 5
    for row in rows:
        for part in row.split("..."):
            assert part.strip(" ,") in code, part
