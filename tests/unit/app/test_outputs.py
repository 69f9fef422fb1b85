"""Outputs whose readers are slow, stop or go away."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app import outputs
from app.outputs import Output, Outputs, unblock

PAGE = 4096
Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """The ends of a pipe that is never waited for."""
    ends = os.pipe()
    unblock(ends[1])
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):  # a test has closed it
            os.close(end)


def fill(descriptor: int) -> int:
    """Write until no more fits; returns the bytes written."""
    written = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            written += os.write(descriptor, b"." * PAGE)
    return written


def lines(number: int) -> list[bytes]:
    return [b"line %d %s\n" % (each, b"x" * 500) for each in range(number)]


def read(descriptor: int, size: int) -> bytes:
    got = b""
    while len(got) < size:
        got += os.read(descriptor, size - len(got))
    return got


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_lines_reach_a_slow_reader_in_order(pipe: Pipe) -> None:
    output = Output(pipe[1], "stderr")
    written = lines(1000)
    with Outputs([output]).in_threads():
        for line in written:
            output.write(line)
        assert read(pipe[0], len(b"".join(written))) == b"".join(written)
    assert output.dropped == 0


def test_full_queue_drops_lines_and_tells_once_it_is_read(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "QUEUE_BYTES", 100 * PAGE)
    output = Output(pipe[1], "stderr")
    written = lines(2000)
    filled = fill(pipe[1])
    with capture_logs() as logs, Outputs([output]).in_threads():
        for line in written:
            output.write(line)
        kept = 2000 - output.dropped
        assert 100 < kept < 1900
        assert not logs
        read(pipe[0], filled)
        assert read(pipe[0], len(b"".join(written[:kept]))) == b"".join(written[:kept])
        until(lambda: bool(logs))
        output.write(b"later\n")
        assert read(pipe[0], 6) == b"later\n"
    told = {"event": "log_lines_dropped", "lines": 2000 - kept, "output": "stderr"}
    assert logs == [told | {"log_level": "error"}]


@pytest.mark.parametrize("target", ["a closed pipe", "a full disk"])
def test_lines_that_cannot_be_written_are_dropped(target: str, pipe: Pipe) -> None:
    os.close(pipe[0])
    full = os.open("/dev/full", os.O_WRONLY)
    output = Output(full if target == "a full disk" else pipe[1], "stderr")
    with capture_logs() as logs:
        output.write(b"one\n")
        with Outputs([output]).in_threads():
            output.write(b"two\nthree\n")
    os.close(full)
    assert output.dropped == 3
    assert not logs


def test_lines_are_written_and_told_once_the_disk_has_room(tmp_path: Path) -> None:
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    full = os.open("/dev/full", os.O_WRONLY)
    moving = os.dup(full)
    output = Output(moving, "stderr")
    with capture_logs() as logs:
        output.write(b"lost\n")
        os.dup2(log, moving)
        output.write(b"kept\n")
    for each in (log, full, moving):
        os.close(each)
    assert (tmp_path / "log").read_bytes() == b"kept\n"
    assert [each["lines"] for each in logs] == [1]


def test_line_after_a_torn_one_begins_a_new_line(pipe: Pipe, tmp_path: Path) -> None:
    moving, full = os.dup(pipe[1]), os.open("/dev/full", os.O_WRONLY)
    output = Output(moving, "stderr")
    output._patience_s = 0.0
    filled = fill(moving)
    read(pipe[0], PAGE)
    output.write(b"x" * 2 * PAGE + b"\n")  # a part of it fits
    os.dup2(full, moving)
    output.write(b"lost\n")
    read(pipe[0], filled - PAGE)
    os.dup2(pipe[1], moving)
    with capture_logs():
        output.write(b"whole\n")
    assert read(pipe[0], PAGE + 7) == b"x" * PAGE + b"\nwhole\n"
    for each in (moving, full):
        os.close(each)


def test_nobody_waits_for_an_output_that_is_not_read(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "PATIENCE_S", 0.05)
    monkeypatch.setattr(outputs, "FLUSH_S", 0.05)
    output = Output(pipe[1], "stderr")
    filled = fill(pipe[1])
    output.write(b"before\n")
    with Outputs([output]).in_threads():
        output.write(b"during\n")
    output.write(b"after\n")
    assert output.dropped == 0
    read(pipe[0], filled)
    assert read(pipe[0], 20) == b"before\nduring\nafter\n"


def test_only_the_own_end_of_a_pipe_never_blocks() -> None:
    reading, writing = os.pipe()
    shared = os.dup(writing)
    assert unblock(writing)
    assert (os.get_blocking(writing), os.get_blocking(shared)) == (False, True)
    for each in (reading, writing, shared):
        os.close(each)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_stopped_terminal_never_blocks() -> None:
    controlling, terminal = os.openpty()
    shared = os.dup(terminal)
    assert unblock(terminal)
    assert os.get_blocking(shared)
    termios.tcflow(terminal, termios.TCOOFF)  # as by Ctrl-S
    with pytest.raises(BlockingIOError):
        os.write(terminal, b"line\n")
    termios.tcflow(terminal, termios.TCOON)
    os.write(terminal, b"line\n")
    assert os.read(controlling, PAGE) == b"line\r\n"
    for each in (controlling, terminal, shared):
        os.close(each)


def ended(program: str, stderr: int = subprocess.STDOUT) -> subprocess.CompletedProcess[str]:
    """A process that has taken over its outputs, which are the same pipe."""
    begin = "import os, signal, sys, threading, warnings\nfrom app.outputs import take_over\n"
    return subprocess.run(
        [sys.executable, "-c", f"{begin}outputs = take_over()\n{program}"],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
        timeout=60,
    )


def test_prints_warnings_and_errors_keep_their_order() -> None:
    done = ended(
        "with outputs.in_threads():\n"
        "    print('one')\n"
        "    print('two', file=sys.stderr)\n"
        "    warnings.warn('three', stacklevel=1)\n"
        "    thread = threading.Thread(target=lambda: 1 / 0)\n"
        "    thread.start(); thread.join()\n"
        "    print('four')\n"
        "    sys.exit('five')\n"
    )
    places = [done.stdout.index(each) for each in ("one", "two", "three", "ZeroDivisionError")]
    assert places == sorted(places)
    assert done.stdout.endswith("four\nfive\n")
    assert done.returncode == 1


def test_fork_writes_in_a_thread_of_its_own() -> None:
    done = ended(
        "print('parent')\n"
        "if os.fork() == 0:\n"
        "    with take_over().in_threads():\n"
        "        print('child', threading.active_count())\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "with outputs.in_threads():\n"
        "    print('parent', threading.active_count())\n"
    )
    assert done.stdout == "parent\nchild 2\nparent 2\n"


def test_signal_handler_may_log_while_its_thread_does() -> None:
    done = ended(
        "signal.signal(signal.SIGALRM, lambda *_: sys.stdout.write('handled\\n'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)\n"
        "with outputs.in_threads():\n"
        "    for number in range(20000):\n"
        "        sys.stdout.write(f'line {number}\\n')\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    told = done.stdout.split()
    assert done.returncode == 0
    assert told.count("handled") > 5
    assert [each for each in told if each.isdecimal()] == [str(n) for n in range(20000)]


def test_sockets_never_block() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert unblock(ours.fileno())
        fill(ours.fileno())


def test_files_are_left_as_they_are(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert unblock(file.fileno())
        assert os.get_blocking(file.fileno())
