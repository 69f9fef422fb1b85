"""Large blocks go back to the system, in a process of their own: thresholds hold for all of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Prints the MiB that stay after another thread's 16 MiB have been freed. A larger block is freed
# first: it raises the size from which glibc gives blocks a mapping of their own.
STAYS = """
import contextlib, ctypes, sys, threading
from models.heap import own_mappings, trim
from models.resources import resident_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
MIB = 1 << 20
libc.free(libc.malloc(24 * MIB))
blocks = []
def allocate():
    inside = own_mappings if sys.argv[1] == "inside" else contextlib.nullcontext
    with inside():
        with inside():
            pass
        blocks.append(libc.malloc(16 * MIB))
    libc.memset(ctypes.c_void_p(blocks[-1]), 1, 16 * MIB)
before = resident_bytes()
thread = threading.Thread(target=allocate)
thread.start()
thread.join()
libc.free(blocks.pop())
trim()
print((resident_bytes() - before) // MIB)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc, and /proc")
@pytest.mark.parametrize(("where", "stays"), [("inside", False), ("outside", True)])
def test_a_large_block_of_another_thread_returns(where: str, stays: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STAYS, where], capture_output=True, text=True, check=True
    )
    assert (int(ran.stdout) >= 15) is stays, ran.stdout
