"""A share of a core for a server that is faster than the generator, by the kernel's CPU quota.

Linux only, and only for who may make control groups, such as root; version 1 or 2.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 4000  # short beside the deadline: who has used up his share waits for the rest of it
GONE_WITHIN_S = 5.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Quota:
    """A control group that may use so much of a core."""

    folder: Path

    def take(self, process_ids: Iterable[int]) -> None:
        """Put processes into it, and with them all that they will start."""
        for process_id in process_ids:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                (self.folder / "cgroup.procs").write_text(str(process_id))


@contextlib.contextmanager
def quota(share: float, root: Path = ROOT) -> Iterator[Quota | None]:
    """A group for this share of one core; None where this machine lets us make none.

    It goes when the block is left; whoever was put into it has to be gone by then.
    """
    folder = _made(share, root)
    try:
        yield Quota(folder) if folder is not None else None
    finally:
        if folder is not None:
            _remove(folder)


def _made(share: float, root: Path) -> Path | None:
    name, used_us = f"torchlane-overload-{os.getpid()}", round(share * PERIOD_US)
    of_two = (root / "cgroup.controllers").exists()
    folder = (root if of_two else root / "cpu") / name
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        if of_two:
            (folder / "cpu.max").write_text(f"{used_us} {PERIOD_US}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(used_us))
    except OSError:  # such as where the controller is not handed down
        _remove(folder)
        return None
    return folder


def _remove(folder: Path) -> None:
    """The kernel lets go of a group some moments after its last process."""
    give_up_at = time.monotonic() + GONE_WITHIN_S
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(POLL_S)
        else:
            return
