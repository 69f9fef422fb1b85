"""`python -m loadtests.bench`: Torchlane beside other servers on the same work.

Each server runs on one core and the load comes from another one; our server and the others take
turns in each round. Answers are compared by content before and during the load.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from loadtests.bench import machine, plot, report
from loadtests.bench.adopting import ModelError
from loadtests.bench.answers import CheckError
from loadtests.bench.artifacts import newest_artifact
from loadtests.bench.bodies import BodiesError
from loadtests.bench.environments import SetupError, check_compiled, set_up
from loadtests.bench.generator import LoadError
from loadtests.bench.options import Setup, parse
from loadtests.bench.servers import Cores, ServerError, choose_cores, pinned
from loadtests.bench.session import Session

TABLE_WIDTH = 112  # a narrower terminal breaks lines: better than figures without their ends
FAILURES = (BodiesError, CheckError, LoadError, ModelError, ServerError, SetupError, ValueError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, TABLE_WIDTH)
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = parse(given)
    for number in (signal.SIGTERM, signal.SIGHUP):  # or servers that sleep would be left behind
        signal.signal(number, _leave)
    try:
        if isinstance(asked, Setup):
            set_up(asked.peers, console.print)
            return 0
        folder = newest_artifact(asked.artifacts)
        if asked.package is not None:
            check_compiled(asked.package)
        cores = choose_cores()
        found = machine.conditions(f"python -m loadtests.bench {' '.join(given)}", asked, cores)
        console.print(machine.headline(found, str(folder)))
        forwards = raw_forwards(console, folder, cores) if asked.raw_forwards else None
        found |= {"forward": forwards, "shared_environment": dict(asked.shared_environment)}
        session = Session(asked, cores, folder, console.print)
        ended, code = _run(session)
    except FAILURES as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("bench: interrupted\n")
        return 130
    if session.results:  # what there is, also if the rest is missing
        _report(console, session, found | {"incomplete": ended})
    if ended is not None:
        sys.stderr.write(f"bench: {ended}\n")
    return code


def _run(session: Session) -> tuple[str | None, int]:
    """Measure; why it ended before its end, if it did, and the exit code."""
    try:
        session.run()
    except FAILURES as error:
        return str(error), 1
    except KeyboardInterrupt:
        return "interrupted", 130
    return None, 0


def _report(console: Console, session: Session, found: report.Json) -> None:
    """Print and write what was measured."""
    if found["forward"] is not None:
        report.print_forwards(console, found["forward"])
    judged = report.judged(session.results, found)
    report.print_figures(console, session.results)
    report.print_acceptance(console, judged)
    made = report.as_json(session.results, judged, found)
    made |= {"left_out": session.left_out, "retried": session.retried}
    out = session.options.out
    file = report.write_json(made, out)
    picture = out / plot.FILE
    picture.write_bytes(plot.png_of(session.results, found))
    console.print(f"written to {file} and {picture}")


def raw_forwards(console: Console, folder: Path, cores: Cores) -> report.Json | None:
    """Forwards without a server, by the plan and by the plain script, on the server's core.

    Where the plan is not of one thread of this machine, the reason is printed instead, and what to
    do: servers choose for themselves then, and are measured all the same.
    """
    with pinned(cores.server):
        command = [sys.executable, "-m", "loadtests.bench.forward", str(folder)]
        done = subprocess.run(  # nosec B603 # a module of ours
            command, capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it ended without a word"]
        console.print(f"forwards were not measured: {lines[-1].removeprefix('forward: ')}")
        return None
    found: report.Json = json.loads(done.stdout)
    return found


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
