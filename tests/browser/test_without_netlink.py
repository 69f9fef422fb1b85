"""The browser's wrapper, with Python in place of the browser."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from tests.browser.chromium import WITHOUT_NETLINK
from tests.browser.without_netlink import SOCKET_CALLS

OPENS = """
import socket
socket.socket(socket.AF_INET).close()
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in SOCKET_CALLS,
    reason="needs a filter for system calls of this machine",
)
def test_only_netlink_is_forbidden() -> None:
    ran = subprocess.run(
        [WITHOUT_NETLINK, "-c", OPENS],
        env={**os.environ, "BROWSER_PROGRAM": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("OSError: [Errno 97]"), ran.stderr
