"""`python -m loadtests overload`: from the options to the files and the exit code."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from rich.console import Console

from loadtests.bench import machine
from loadtests.bench.adopting import ModelError
from loadtests.bench.answers import CheckError
from loadtests.bench.artifacts import newest_artifact
from loadtests.bench.bodies import BodiesError
from loadtests.bench.environments import SetupError, check_compiled
from loadtests.bench.generator import LoadError
from loadtests.bench.servers import ServerError, choose_cores
from loadtests.capacity.commands import check_writable
from loadtests.overload import report
from loadtests.overload.session import Options, Session
from loadtests.overload.verdicts import judge

WIDTH = 160  # a narrower terminal breaks lines: better than figures without their ends
OK, FAILED, INTERRUPTED = 0, 1, 130
FAILURES = (BodiesError, CheckError, LoadError, ModelError, ServerError, SetupError, ValueError)


def overload(given: argparse.Namespace, console: Console, command: str) -> int:
    """Measure, print, write; returns the exit code.

    A missed demand is a result like any other: it is said, and the exit code is 0.
    """
    options = Options.of(given)
    console.width = max(console.width, WIDTH)
    check_writable(given.out)
    with _leaving():
        try:
            digits = newest_artifact(given.artifacts) if "digits" in options.models else None
            if options.package is not None:
                check_compiled(options.package)
            cores = choose_cores()
            found = machine.where(command, cores, compiled=options.package is not None)
            console.print(machine.place(found))
            session = Session(options, cores, digits, console.print)
            ended, code = _run(session)
        except FAILURES as error:
            sys.stderr.write(f"overload: {error}\n")
            return FAILED
    if session.results:  # what there is, also if the rest is missing
        lines = judge(session.results)
        found |= {"left_out": session.left_out, "incomplete": ended}
        report.print_report(console, session.results, lines, session.titles)
        text = report.markdown(session.results, lines, session.titles, found)
        report.write(given.out, report.as_json(session.results, lines, found), text)
        console.print(f"written to {given.out}/{report.JSON_FILE} and {report.MARKDOWN_FILE}")
    if ended is not None:
        sys.stderr.write(f"overload: {ended}\n")
    return code


def _run(session: Session) -> tuple[str | None, int]:
    """Measure; why it ended before its end, if it did, and the exit code."""
    try:
        session.run()
    except FAILURES as error:
        return str(error), FAILED
    except KeyboardInterrupt:
        return "interrupted", INTERRUPTED
    return None, OK


@contextlib.contextmanager
def _leaving() -> Iterator[None]:
    """End servers on SIGTERM and SIGHUP too: those that sleep would be left behind."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {each: signal.signal(each, leave) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
