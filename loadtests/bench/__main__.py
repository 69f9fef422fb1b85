"""`python -m loadtests.bench`: Torchlane beside other servers on the same work.

Each server runs on one core and the load comes from another one; our server and the others take
turns in each round. Answers are compared by content before and during the load.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from loadtests.bench import machine, report, wrk
from loadtests.bench.acceptance import judge
from loadtests.bench.ending import FAILURES, ended, leaving
from loadtests.bench.environments import check_compiled, set_up
from loadtests.bench.options import Setup, parse
from loadtests.bench.own_models import newest_artifact
from loadtests.bench.servers import choose_cores
from loadtests.bench.session import Session
from loadtests.reports import check_writable, print_judged, write

TABLE_WIDTH = 125  # a narrower terminal breaks lines: better than figures without their ends


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    console = Console(highlight=False, soft_wrap=True, record=True)
    console.width = max(console.width, TABLE_WIDTH)
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = parse(given)
    try:
        with leaving():
            if isinstance(asked, Setup):
                set_up(asked.peers, console.print)
                return 0
            check_writable(asked.out)
            found = {"generator": wrk.version(), "rounds": asked.rounds, "seconds": asked.seconds}
            folder = newest_artifact(asked.artifacts)
            if asked.package is not None:
                check_compiled(asked.package)
            cores = choose_cores()
            command = shlex.join(["python", "-m", "loadtests.bench", *given])
            found |= machine.where(command, cores, asked.package)
            console.print(f"{folder}; load by {found['generator']}")
            console.print(f"{asked.rounds} round(s) of {asked.seconds} s a run")
            console.print(machine.told(found))
            session = Session(asked, cores, folder, console.print)
            reason, code = ended(session.run)
    except FAILURES as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("bench: interrupted\n")
        return 130
    if session.results:  # what there is, also if the rest is missing
        judged = judge(session.results, found)
        report.print_figures(console, session.results)
        print_judged(console, judged)
        made = report.as_json(session.results, judged, found)
        made |= {
            "left_out": session.left_out,
            "retried": session.retried,
            "incomplete": reason,
        }
        write(asked.out, "bench", made, console)
    if reason is not None:
        sys.stderr.write(f"bench: {reason}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
