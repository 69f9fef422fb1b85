"""`python -m tests.devices.machine`: what the measurements of a device depend on."""

from __future__ import annotations

import platform
import sys

import torch

from models.processor import cpu_name
from models.system.resources import usable_cores


def main() -> int:
    """Print it; returns the exit code."""
    write = sys.stdout.write
    write(f"python: {platform.python_version()}\n")
    write(f"torch: {torch.__version__}, CUDA {torch.version.cuda}\n")
    write(f"cpu: {cpu_name()}, {usable_cores()} cores\n")
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        write(f"gpu: {about.name}, {about.total_memory >> 30} GiB, {about.major}.{about.minor}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
