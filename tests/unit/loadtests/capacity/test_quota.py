"""A share of a core, where this machine lets us give one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.capacity.quota import quota

SPIN = """
import time
began, until = time.process_time(), time.monotonic() + 0.5
while time.monotonic() < until:
    pass
print(time.process_time() - began)
"""


def test_where_no_group_can_be_made_there_is_none(tmp_path: Path) -> None:
    with quota(0.3, tmp_path) as group:
        assert group is None
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "cpu").touch()
    with quota(0.3, tmp_path / "nowhere") as group:
        assert group is None


def test_a_server_gets_its_share_and_the_group_goes_with_it() -> None:
    with quota(0.3) as group:
        if group is None:
            pytest.skip("this machine lets us make no control group")
        with subprocess.Popen(
            [sys.executable, "-c", f"input()\n{SPIN}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as spinning:
            group.take([spinning.pid, 2**22 + 1])  # the other has ended long ago
            out, _ = spinning.communicate("go\n")
        assert float(out) < 0.3  # of 0.5 s, not 0.15: it is the kernel that counts
    assert not group.folder.exists()
