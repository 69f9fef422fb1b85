"""`python -m tests.chaos`: rounds of chaos, one server after the other; `make chaos` runs it."""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.chaos.plan import ChaosPlan, Outcome
from tests.chaos.report import failures, header, table, totals
from tests.chaos.rounds import run_round

ROUND_REQUESTS = 20_000
CACHES = (0, 50_000, 64 * 1024 * 1024)  # none, one that always makes room, one that holds all
SEVERAL_WORKERS = 4  # one round in four has two processes, of which one is killed
SERVER_KILLED = 2  # the same behind HAProxy, where it is one of the servers
KILL_REQUESTS = 5_000


def plan_of(seed: int, number: int, servers: int = 0) -> ChaosPlan:
    """What a round of a run does; nothing but these numbers decides."""
    rng = random.Random(f"{seed}/{number}")
    every = SERVER_KILLED if servers else SEVERAL_WORKERS
    several = number % every == every - 1
    return ChaosPlan(
        seed=rng.randrange(1 << 31),
        requests=KILL_REQUESTS if several else ROUND_REQUESTS,
        workers=2 if several and not servers else 1,
        servers=servers,
        kills_server=several and servers > 0,
        cache_bytes=rng.choice(CACHES),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rounds until enough was asked; returns the exit code: 1 if anything is wrong."""
    warnings.filterwarnings("ignore", "`torch.jit.*is deprecated")
    asked = _parser().parse_args(arguments)
    seed = secrets.randbelow(1 << 31) if asked.seed is None else asked.seed
    print(header(seed), flush=True)  # noqa: T201  # the report is what this program is for
    deadline = time.monotonic() + asked.minutes * 60
    outcomes: list[tuple[int, Outcome]] = []
    number, done = asked.round or 0, 0
    while done < asked.requests and time.monotonic() < deadline:
        plan = plan_of(seed, number, asked.haproxy)
        plan = replace(
            plan,
            requests=min(plan.requests, asked.requests - done),
            retry_on=asked.retry_on,
            hangs=asked.hangs and not plan.kills,
            switches=asked.switches and not plan.kills,
        )
        outcome = _run(plan)
        outcomes.append((number, outcome))
        done += outcome.checker.counts.total()
        print(table(outcomes[-1:]), flush=True)  # noqa: T201
        if asked.round is not None:
            break
        number += 1
    wrong = failures(seed, outcomes)
    short = asked.round is None and done < asked.requests
    print(f"\n{table(outcomes)}\n{totals(outcomes)}\n{wrong or 'nothing is wrong'}")  # noqa: T201
    if short:
        print(f"the time was over after {done} of {asked.requests} requests")  # noqa: T201
    return 1 if wrong or short else 0


def _run(plan: ChaosPlan) -> Outcome:
    """One round, whose folder stays if something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    outcome = run_round(plan, folder)
    if outcome.is_good:
        shutil.rmtree(folder)
    else:
        outcome.problems.append(f"log and journal of the server: {folder}")
    return outcome


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000, help="how many in all")
    parser.add_argument("--seed", type=int, help="of everything that is drawn; default: any")
    parser.add_argument("--minutes", type=float, default=30, help="no round begins after them")
    parser.add_argument("--round", type=int, help="this one alone, of a run that failed")
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--hangs", action=switch, default=True, help="forwards may hang")
    parser.add_argument("--haproxy", type=int, default=0, help="number of servers behind HAProxy")
    parser.add_argument("--retry-on", default="", help="of HAProxy, instead of what is shipped")
    parser.add_argument("--switches", action=switch, default=True, help="publish versions")
    return parser


if __name__ == "__main__":
    sys.exit(main())
