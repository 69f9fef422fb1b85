"""A process ends with its own exit code, whatever its threads do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# TorchScript reads the source of a class from its file.
PROGRAM = """
import atexit, threading, time, warnings
import torch
from app.processes.ending import exit_with

class Loop(torch.nn.Module):
    def forward(self, x):
        for _ in range(50):
            x = x * 1.0001
        return x

warnings.simplefilter("ignore")
scripted = torch.jit.script(Loop())

def work():
    while True:
        scripted(torch.ones(100))

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
atexit.register(print, "at exit")
exit_with(3)
"""


def test_threads_in_native_code_do_not_abort_the_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "at exit\n", "")
