"""The program runs, and what it prints is of both kinds."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from models.resources import usable_cores


@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
def test_it_says_what_each_setting_does() -> None:
    command = [sys.executable, "-m", "tests.devices", "--rounds", "1", "--seconds", "0.3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    for kind in ("engine", "raw", "pipeline"):
        line = rf"^{kind}: one [1-9][\d,]*/s, two [1-9][\d,]*/s; ratio \d+\.\d\d"
        assert re.search(line, done.stdout, re.MULTILINE), done.stdout
