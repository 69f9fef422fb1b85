"""What is left: threads, tasks, files and memory of a process, its handlers, and its log."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.chaos.plan import ChaosPlan
from tests.chaos.relayed import JOURNAL, SCRATCH, Acts
from tests.chaos.truth import HANDLERS
from tests.e2e.server import Server

POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)  # of asyncio, which looks at files in them
PREFIXES = tuple(f"{each}/" for each in HANDLERS)  # of what their processes are called
SETTLE_S = 10.0  # until processes have gone that were killed
GROWTH_LIMIT_BYTES = 96 * 1024 * 1024  # twice what the most requests at once left in allocators
BUGS = frozenset(
    {
        "answer_failed",
        "answer_not_complete",
        "application_failed",
        "background_task_failed",
        "caller_not_told",
        "connection_lost",
        "connection_not_opened",
        "drain_incomplete",
        "replica_stuck",
        "request_not_counted",
        "unhandled_error",
    }
)


@dataclass(frozen=True)
class Holdings:
    """What a process holds."""

    threads: int
    tasks: int
    files: int
    rss: int

    @classmethod
    def of(cls, server: Server) -> Holdings:
        """What a server of one process holds now."""
        process = psutil.Process(server.process.pid)
        process.send_signal(signal.SIGUSR2)  # it collects before it answers
        tasks = int(server.metric("torchlane_event_loop_tasks"))
        files = int(server.metric("process_open_fds"))  # with handlers, only it may look itself
        return cls(process.num_threads(), tasks, files, process.memory_info().rss)

    def grown(self, before: Holdings, cache_bytes: int, hung: int, kept: int = 0) -> list[str]:
        """What it holds more than it did, but for what hangs and connections that are kept."""
        problems = []
        if self.threads > before.threads + hung + POOL_THREADS:
            problems.append(f"{before.threads} threads have become {self.threads}")
        if self.tasks > before.tasks + hung + kept:
            problems.append(f"{before.tasks} tasks of the event loop have become {self.tasks}")
        if self.files > before.files + kept:
            problems.append(f"{before.files} open files have become {self.files}")
        if self.rss - before.rss > GROWTH_LIMIT_BYTES + cache_bytes:
            problems.append(f"it has grown by {(self.rss - before.rss) >> 20} MiB")
        return problems


def events(log: str, logger: str = "") -> Counter[str]:
    """Event -> how often the log tells of it.

    Args:
        log: of the server, as JSON.
        logger: who told it; empty: anybody.
    """
    told = (json.loads(line) for line in log.splitlines() if line.startswith("{"))
    return Counter(each["event"] for each in told if each["logger"].startswith(logger))


def ended(server: Server, limit_s: float) -> list[str]:
    """What is wrong with how a server has ended, and with what its log tells."""
    code = server.exit_code(limit_s)
    problems = [f"it ended with exit code {code}"] if code != 0 else []
    told = events(server.log)
    problems += [f"the log says {told[bug]} times {bug}" for bug in sorted(BUGS) if told[bug]]
    loose = [line for line in server.log.splitlines() if line and not line.startswith("{")]
    return problems + ([f"the log has loose lines: {loose[:3]}"] if loose else [])


def remains(folder: Path, plan: ChaosPlan) -> list[str]:
    """What servers have left of their handlers; ends what is left of processes.

    What a handler forked is in no process's care once its server was killed, nor is the scratch
    folder of a server before the next one starts.

    Args:
        folder: of the round.
        plan: of the round.
    """
    problems = []
    acts = Acts(folder / JOURNAL)
    orphans = acts.children if plan.kills else set[int]()
    if left := _until_none(lambda: [*filter(_is_ours, acts.pids | acts.children - orphans)]):
        problems.append(f"processes of handlers are left: {left}")
    for pid in filter(_is_ours, acts.pids | acts.children):
        os.kill(pid, signal.SIGKILL)
    folders = [each.name for each in (folder / SCRATCH).glob("torchlane-handler-*")]
    if len(folders) > plan.kills_server * len(HANDLERS):
        problems.append(f"folders of handlers are left: {folders}")
    return problems


def open_streams(acts: Acts) -> list[str]:
    """Which generators of handlers are open, while nobody asks anything."""
    pids = [pid for pid, streams in acts.streaming.items() if streams and _is_ours(pid)]
    return [f"generators are not closed in the processes {pids}"] if pids else []


def _until_none(look: Callable[[], Sequence[int]]) -> Sequence[int]:
    until = time.monotonic() + SETTLE_S
    while (left := look()) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _is_ours(pid: int) -> bool:
    """Whether this process runs the handler; its number may have got to another one."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any(
            each.startswith(PREFIXES) for each in process.cmdline()
        )
    except psutil.NoSuchProcess:
        return False
