"""The timer of the event loop, in processes that hang, that are paused, and in process 1."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere faulthandler's own timer does"),
]
# Says that it runs, and then does what its argument says.
PROGRAM = """
import contextlib, ctypes, os, re, socket, sys, threading, time
from app.processes.hang_timer import HangTimer
kept = {"pipe": os.pipe, "socket": socket.socketpair, "none": lambda: None}[sys.argv[2]]()
if kept is not None:
    ours = kept[1] if isinstance(kept[1], int) else kept[1].fileno()
    os.set_blocking(ours, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(ours, bytes(4096))
    os.set_blocking(ours, True)
    os.dup2(ours, 2)
if "without" in sys.argv[1]:
    HangTimer._create = lambda self: False
timer = HangTimer(0.5)
def turn(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        timer.rewind()
        time.sleep(0.1)
def sleep_with_the_gil():
    ctypes.PyDLL(None).sleep(60)
turn(0.7)
print("runs", flush=True)
if sys.argv[1].startswith("spins"):
    re.match("(a+)+$", "a" * 60 + "b")
elif sys.argv[1] == "sleeps":
    threading.Thread(target=sleep_with_the_gil).start()
elif sys.argv[1] == "is paused":
    turn(14)
elif sys.argv[1] == "is cancelled":
    timer.cancel()
    time.sleep(12)
"""
IN_A_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")
UNREAD = ("pipe", "socket")
CASES = {
    "sleeps": (),
    "is paused": (),
    "is cancelled": (),
    "spins as process 1": IN_A_NAMESPACE,
    "spins without a timer of the kernel": (),
    **{f"sleeps, unread {each}": () for each in UNREAD},
    **{f"spins without a timer of the kernel, unread {each}": () for each in UNREAD},
}
Ended = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def ended() -> Iterator[Ended]:
    """Exit code and stderr of each case; all run at once, since the timer takes 10 s."""
    processes = {
        case: subprocess.Popen(
            [*prefix, sys.executable, "-c", PROGRAM, *_arguments(case)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for case, prefix in CASES.items()
        if prefix == () or _may_unshare()
    }
    try:
        for process in processes.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
        paused = processes["is paused"]
        paused.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        paused.send_signal(signal.SIGCONT)
        outputs = {case: process.communicate(timeout=40)[1] for case, process in processes.items()}
        yield {case: (each.returncode, outputs[case]) for case, each in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def _arguments(case: str) -> tuple[str, str]:
    """What the program does, and what stderr is that nobody reads."""
    does, _, unread = case.removesuffix(" as process 1").partition(", unread ")
    return does, unread or "none"


def _may_unshare() -> bool:
    tried = subprocess.run([*IN_A_NAMESPACE, "true"], check=False, capture_output=True)
    return tried.returncode == 0


@pytest.mark.parametrize("case", ["sleeps", "spins as process 1"])
def test_process_hanging_with_the_gil_dumps_its_stacks(ended: Ended, case: str) -> None:
    if case not in ended:
        pytest.skip("may not create a process namespace")
    code, stacks = ended[case]
    assert code == signal.SIGALRM
    assert ("sleep_with_the_gil" if case == "sleeps" else "match") in stacks


def test_faulthandler_timer_replaces_a_missing_kernel_timer(ended: Ended) -> None:
    code, stacks = ended["spins without a timer of the kernel"]
    assert code == 1
    assert "Timeout (0:00:00.5" in stacks


@pytest.mark.parametrize("unread", UNREAD)
def test_process_ends_although_nobody_reads_its_stacks(ended: Ended, unread: str) -> None:
    assert ended[f"sleeps, unread {unread}"][0] == signal.SIGALRM
    assert ended[f"spins without a timer of the kernel, unread {unread}"][0] == 1


def test_paused_process_continues(ended: Ended) -> None:
    assert ended["is paused"] == (0, "")


def test_a_cancelled_timer_ends_nothing(ended: Ended) -> None:
    assert ended["is cancelled"] == (0, "")
