"""`python -m tests.devices`: two CPU devices beside one, in turns.

Two replicas on two cores beside one on one, by the engine and as bare forwards; and a pipeline of
two stages beside the same stages one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
from collections.abc import Sequence

from models.processor import cpu_name
from models.system.resources import usable_cores
from tests.devices.child import BATCH, PRODUCTS, SIDE

ONE, TWO = (1, 1), (2, 2)  # replicas, cores
# What is compared: a title, and two settings: kind, replicas, cores.
PAIRS = (
    ("engine", ("engine", *ONE), ("engine", *TWO)),
    ("raw", ("raw", *ONE), ("raw", *TWO)),
    ("pipeline", ("in-turn", *TWO), ("pipeline", *TWO)),
)


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

    def close(self) -> None:
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
    for title, *settings in PAIRS:
        rates: list[list[float]] = [[] for _ in settings]
        for _ in range(given.rounds):
            for place, (kind, replicas, cores) in enumerate(settings):
                # One at a time, each anew: an idle one would keep its items running.
                with contextlib.closing(Child(kind, replicas, cores)) as child:
                    child.measure(0.5)  # warms it
                    rates[place].append(child.measure(given.seconds))
        ratios = [two / one for one, two in zip(*rates, strict=True)]
        one, two = (statistics.median(found) for found in rates)
        write(
            f"{title}: one {one:,.0f}/s, two {two:,.0f}/s; ratio {statistics.median(ratios):.2f} "
            f"({' '.join(f'{ratio:.2f}' for ratio in ratios)})\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
