"""Options, gates and exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import io
import resource
import signal
from pathlib import Path

import pytest
from rich.console import Console

from loadtests.__main__ import COMMANDS, main
from loadtests.capacity import commands
from loadtests.capacity.commands import exit_code, missed_gates
from loadtests.capacity.finding import End, Found
from loadtests.capacity.search import Answer
from loadtests.errors import UsageError
from loadtests.reports import check_writable, warnings
from loadtests.traffic.credentials import VARIABLE
from tests.unit.loadtests.openloop.trials import trial
from tests.unit.loadtests.traffic.fake_server import FakeServer, listening


def test_the_help_says_what_each_command_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name, (what, *_) in COMMANDS.items():
        for asked in (["--help"], [name, "--help"]):
            with pytest.raises(SystemExit):
                main(asked)
            assert what in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ["find-capacity", "--slo-ms", "0"],
        ["find-capacity", "--slo-ms", "nan"],
        ["find-capacity", "--fail-ratio", "1.5"],
        ["find-capacity", "--budget-s", "soon"],
        ["find-capacity", "--connections", "1.5"],
        ["find-capacity", "--arrivals", "closed"],
        ["run"],
        ["run", "--rate", "-3"],
        ["run", "--rate", "3", "--seed", "-1"],
        ["find-capacity", "--max-rate", "0.5"],
        [],
    ],
)
def test_wrong_options_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_timeout_within_the_slo_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find-capacity", "--timeout-s", "0.05"]) == 1
    assert "--timeout-s 0.05 must be longer than --slo-ms 50" in capsys.readouterr().err
    run = ["run", "--rate", "5", "--slo-ms", "9", "--timeout-s", "0.05"]
    assert main([*run, "--fail-p99-ms", "60"]) == 1
    assert "--timeout-s 0.05 must be longer than --fail-p99-ms 60" in capsys.readouterr().err


def test_more_connections_than_open_files_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    try:
        assert main(["run", "--rate", "5"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    said = capsys.readouterr().err
    assert "512 connections need 576 open files, but the limit is 500" in said
    assert "ulimit -n 576" in said


def test_unexpected_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(given: argparse.Namespace) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(commands, "check", broken)
    with pytest.raises(ValueError, match="a bug"):
        main(["run", "--rate", "5"])


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_hangup_ends_a_command_except_under_nohup(
    monkeypatch: pytest.MonkeyPatch, handler: signal.Handlers
) -> None:
    meanwhile = []

    def check(given: argparse.Namespace) -> None:
        meanwhile.append(signal.getsignal(signal.SIGHUP))
        raise UsageError("that is all")

    monkeypatch.setattr(commands, "check", check)
    before = signal.signal(signal.SIGHUP, handler)
    try:
        assert main(["run", "--rate", "5"]) == 1
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (meanwhile == [signal.SIG_IGN]) is (handler == signal.SIG_IGN)


def test_unwritable_output_folder_is_reported_before_the_load(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"--out .*file/out cannot be written: Not a directory"):
        check_writable(tmp_path / "file" / "out")
    check_writable(tmp_path / "new" / "out")
    assert list((tmp_path / "new" / "out").iterdir()) == []


def test_unreachable_server_is_a_one_line_error(
    capsys: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    for command in (["find-capacity"], ["run", "--rate", "5"]):
        assert main([*command, "--url", f"http://127.0.0.1:{unused_tcp_port}"]) == 1
        said = capsys.readouterr().err
        assert said.startswith("loadtests: cannot connect to 127.0.0.1:")
        assert said.count("\n") == 1


def test_invalid_key_error_does_not_show_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "tl secret")
    with listening(FakeServer()) as url:
        assert main(["find-capacity", "--url", url]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"loadtests: {VARIABLE} is not an API key")
    assert "secret" not in said.out + said.err


def found(capacity: float | None, end: End = "found") -> Found:
    return Found(Answer(capacity, 1, 2, confirmed=True), (trial(10, 5),), end, False, 1)


@pytest.mark.parametrize(
    ("capacity", "end", "least", "code"),
    [
        (100.0, "found", None, 0),
        (100.0, "too large", None, 0),
        (100.0, "unreachable", None, 1),
        (100.0, "found", 100.0, 0),
        (99.0, "found", 100.0, 1),
        (None, "found", None, 1),
        (100.0, "wrong answers", None, 1),
        (100.0, "interrupted", None, 130),
    ],
)
def test_exit_codes(capacity: float | None, end: End, least: float | None, code: int) -> None:
    console = Console(file=io.StringIO())
    assert exit_code(found(capacity, end), least, console) == code


def test_min_capacity_needs_a_confirmed_capacity() -> None:
    told = io.StringIO()
    sure = found(100.0)
    unsure = dataclasses.replace(sure, answer=dataclasses.replace(sure.answer, confirmed=False))
    assert exit_code(unsure, None, Console(file=told)) == 0
    assert told.getvalue() == ""
    assert exit_code(unsure, 50.0, Console(file=told, width=200)) == 1
    assert "--min-capacity 50 needs a confirmed capacity; 100/s is not" in told.getvalue()


def test_gates_of_a_single_run() -> None:
    good = trial(100, 20, "run")
    assert missed_gates(good, None, 0.0) == []
    assert missed_gates(good, 20.001, 0.0) == []
    assert missed_gates(good, 19.0, 0.0) == ["p99 is 20.0 ms, above --fail-p99-ms 19"]
    failing = dataclasses.replace(good, failures={"503 overloaded": 20})
    assert missed_gates(failing, None, 0.02) == []
    assert missed_gates(failing, None, 0.01) == ["2.000% failed, above --fail-ratio 1.000%"]
    dead = dataclasses.replace(good, failures={"connection broken": 1000})
    assert missed_gates(dead, None, 1.0) == ["no request was answered"]
    wrong = dataclasses.replace(good, wrong=1, first_wrong="a lie")
    assert missed_gates(wrong, None, 0.0) == ["1 wrong answers, the first: a lie"]


def test_busy_machine_is_reported_before_the_search() -> None:
    assert warnings(0.4, cores=2) == []
    assert "load average is 1.5 on 2 cores" in warnings(1.5, cores=2)[0]
