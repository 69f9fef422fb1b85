"""`python -m tests.devices`: two CPU replicas on two cores beside one on one, in turns."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence

from models.processor import cpu_name
from models.resources import usable_cores
from tests.devices.child import BATCH, PRODUCTS, SIDE

KINDS = ("engine", "raw")
SETTINGS = ((1, 1), (2, 2))  # replicas, cores


class Child:
    """A process that measures when it is asked to; see `tests.devices.child`."""

    def __init__(self, kind: str, replicas: int, cores: int) -> None:
        command = [sys.executable, "-m", "tests.devices.child", kind, str(replicas), str(cores)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, seconds: float) -> float:
        """Items/s of one round."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each setting in a round")
    given = parser.parse_args(arguments)
    if usable_cores() < 2:
        sys.stderr.write("devices: this compares two cores with one, and there is one\n")
        return 1
    write = sys.stdout.write
    write(f"{cpu_name()}, {usable_cores()} cores\n")
    write(f"{PRODUCTS} products of {SIDE} x {SIDE} an item, batches of {BATCH}, one thread each\n")
    for kind in KINDS:
        rates: list[list[float]] = [[] for _ in SETTINGS]
        children: list[Child] = []
        try:
            for number in range(given.rounds + 1):
                for place, setting in enumerate(SETTINGS):
                    # One at a time, each anew: an idle one would keep its items running.
                    child = Child(kind, *setting)
                    children.append(child)
                    child.measure(0.5)  # warms it
                    rate = child.measure(given.seconds)
                    child.end()
                    if number:
                        rates[place].append(rate)
        finally:
            for child in children:
                child.end()
        ratios = [two / one for one, two in zip(*rates, strict=True)]
        one, two = (statistics.median(found) for found in rates)
        write(
            f"{kind}: one {one:,.0f}/s, two {two:,.0f}/s; ratio {statistics.median(ratios):.2f} "
            f"({' '.join(f'{ratio:.2f}' for ratio in ratios)})\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
