"""`python -m loadtests tail`: measures all servers' latencies at equal offered rates, in turns.

The rates are shares of mosec's rate in a closed loop. Arrivals follow a Poisson process, and
latencies count from the moment at which a request was due.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from loadtests.arguments import above_zero, at_least_one
from loadtests.bench.answers import CheckError, answers_of
from loadtests.bench.launch import Contestant, Serving, contestants, spec_of, title_of, told_workers
from loadtests.bench.machine import prepare
from loadtests.bench.measuring import Bench
from loadtests.bench.options import add_common
from loadtests.bench.own_models import manifest_of, newest_artifact
from loadtests.bench.results import Spread, turns
from loadtests.bench.servers import Fleet
from loadtests.bench.stalls import share_stalled, verdict_of
from loadtests.bench.workloads import MOSEC, OURS, PLAIN, WORKLOADS, Workload
from loadtests.openloop.sender import Kind, Outcomes, TrialPlan
from loadtests.openloop.trial import quantiles
from loadtests.reports import Json, Judged, Verdict, cut_short, print_judged, table_of, write
from models.tensors import Array

WORKLOAD_NAMES = ("json-32", "binary-32", "json-64-shared")
SHARES = (0.2, 0.4, 0.6, 0.8)
CLOSED_ROUNDS = 3
LEAD_S = 0.5  # at the start of each turn, in which connections are opened
STALL_S = 0.3
MOST_UNSERVED = 0.001  # a short tail means nothing if the rest was rejected or failed
OVERLOADED = 0.1  # unserved share above which a server is not measured at higher rates
AT, P99_MS = 0.4, 5.0
COLUMNS = (
    *("of mosec's", "server", "offered/s", "p50 ms", "p99 ms", "min..max", "p99.9 ms"),
    *("unserved", "lag p99", "CPU us"),
)


@dataclass(slots=True)
class Tail:
    """One server at one rate, over all turns.

    Attributes:
        latency_ms: of correct answers, by turn.
        requests: number of due requests.
        lag_ms: delay of the generator, the 99th percentile, by turn; a part of latency.
        cpu_us: processor time of the server per request, by turn.
        reasons: why requests were not served.
    """

    share: float
    server: str
    offered_per_s: float
    latency_ms: list[Array] = field(default_factory=list)
    requests: int = 0
    lag_ms: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, outcomes: Outcomes, cpu_us: float) -> None:
        """Count another turn, without its lead."""
        counted = outcomes.due_s >= LEAD_S
        right = counted & (outcomes.kind == Kind.RIGHT)
        wrong = np.flatnonzero(outcomes.kind == Kind.WRONG).tolist()
        if wrong:
            raise CheckError(f"{self.server}: a wrong answer: {outcomes.reason[wrong[0]]}")
        self.latency_ms.append((outcomes.done_s - outcomes.due_s)[right] * 1000)
        self.requests += int(counted.sum())
        self.reasons.update(outcomes.reason[at] for at in np.flatnonzero(counted & ~right).tolist())
        self.lag_ms += quantiles(np.nan_to_num(outcomes.lag_s[counted]) * 1000, (99,))
        self.cpu_us.append(cpu_us)

    @property
    def unserved(self) -> float:
        """The share that was rejected, failed, or not answered in time."""
        return 1 - sum(map(len, self.latency_ms)) / max(1, self.requests)

    def percentiles(self, percent: float) -> list[float]:
        """By turn."""
        return [quantiles(each, (percent,))[0] for each in self.latency_ms]

    def told(self) -> Json:
        """Return the figures for table and file: medians of the turns, but p99.9 of all."""
        p50, p99 = self.percentiles(50), self.percentiles(99)
        return {
            "share": self.share,
            "server": self.server,
            "offered_per_s": self.offered_per_s,
            "p50_ms": statistics.median(p50),
            "p99_ms": statistics.median(p99),
            "p99_ms_by_turn": p99,
            "p99_9_ms": quantiles(np.concatenate(self.latency_ms), (99.9,))[0],
            "unserved": self.unserved,
            "lag_p99_ms": statistics.median(self.lag_ms),
            "cpu_us": statistics.median(self.cpu_us),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the load and its time."""
    parser.add_argument("--workload", choices=WORKLOAD_NAMES, default=WORKLOAD_NAMES[0])
    parser.add_argument("--rounds", type=at_least_one, default=7, help="default: 7")
    parser.add_argument("--seconds", type=above_zero, default=2.0, help="per turn; default: 2")
    add_common(parser)


def tail(given: argparse.Namespace, console: Console, command: str) -> int:
    """Measure, print, write; return the exit code."""
    console.width = max(console.width, 125)
    place, folder = prepare(given, console, command), newest_artifact(given.artifacts)
    workload = next(each for each in WORKLOADS if each.name == given.workload)
    serving = Serving(folder.absolute(), place.cores, place.package)
    found: list[Tail] = []
    stalled: list[float] = []
    with (
        Fleet() as fleet,
        answers_of(folder) as right,
        tempfile.TemporaryDirectory() as scratch,
    ):
        bench = Bench(fleet, serving, manifest_of(folder), right, 1, Path(scratch))
        try:
            measure(bench, workload, given, found, stalled, console.print)
        finally:  # write the results so far, even if the rest is missing
            found = [each for each in found if each.latency_ms]
            if found:
                still = Spread.of(stalled)
                lines = judge(found, still.median)
                stood = f"{still.median:.1%} ({still.low:.1%}..{still.high:.1%})"
                print_tails(console, found, f"{workload.title}; the core was stalled for {stood}")
                print_judged(console, lines)
                made = place.conditions | {"workload": workload.name, "stalled": stalled}
                made |= {"results": [each.told() for each in found], "incomplete": cut_short()}
                made |= {"acceptance": [dataclasses.asdict(line) for line in lines]}
                write(given.out, "tail", made, console)
    return 0


def measure(
    bench: Bench,
    workload: Workload,
    given: argparse.Namespace,
    found: list[Tail],
    stalled: list[float],
    say: Callable[[str], object],
) -> None:
    """Fill `found`, and the stalls before each round."""
    others, left_out = contestants(workload, (MOSEC, PLAIN))
    if MOSEC in left_out:
        raise CheckError(f"mosec determines the offered rates, but {left_out[MOSEC]}")
    servers = {each.key: each for each in (Contestant(OURS), *others)}
    specs = {key: spec_of(each, workload, bench.serving) for key, each in servers.items()}
    for spec in specs.values():
        bench.fleet.start(spec)
    if bench.serving.package:
        bench.check_compiled(servers[OURS], workload)
    if workload.shared:
        say(told_workers(bench.workers(servers[OURS], workload)))
    closed_per_s = max(
        statistics.median(
            bench.measured(each, workload, number).requests_per_s for number in range(CLOSED_ROUNDS)
        )
        for each in others
        if each.server == MOSEC
    )
    for each in servers.values():  # a discarded turn: the first one is slower
        bench.offered(each, workload, TrialPlan(SHARES[0] * closed_per_s, LEAD_S, given.seconds, 0))
    for at, share in enumerate(SHARES):
        tails = {key: Tail(share, key, share * closed_per_s) for key in specs}
        found += tails.values()
        for number in range(given.rounds):
            stalled.append(share_stalled(bench.serving.cores, STALL_S))
            seed = 1 + at * given.rounds + number  # the same arrivals and inputs for all servers
            plan = TrialPlan(share * closed_per_s, LEAD_S, given.seconds, seed)
            for key in turns(list(tails), number):
                tails[key].add(*bench.offered(servers[key], workload, plan))
        for key in [key for key in tails if tails[key].unserved > OVERLOADED]:
            bench.fleet.stop(specs.pop(key))


def judge(found: Sequence[Tail], stalled: float) -> list[Judged]:
    """Judge the demands on ours.

    Args:
        found: of all servers.
        stalled: share of the time in which the server's core was stalled without any load.
    """
    lines = []
    for ours in (each for each in found if each.server == OURS):
        of, is_served = f"{ours.share:.0%} of mosec's", ours.unserved <= MOST_UNSERVED
        p99 = ours.percentiles(99)
        for other in found:
            if other.share == ours.share and other.server.startswith(MOSEC):
                pairs = zip(p99, other.percentiles(99), strict=False)
                ratio = statistics.median(mine / theirs for mine, theirs in pairs if theirs)
                what = f"p99 over {title_of(other.server)}'s"
                verdict: Verdict = "met" if ratio <= 1 and is_served else "missed"
                lines.append(Judged(of, what, "<= 1", f"{ratio:.2f}", verdict))
        if ours.share == AT:
            p99_ms = statistics.median(p99)
            verdict, doubt = verdict_of(p99_ms <= P99_MS and is_served, stalled)
            wanted = f"<= {P99_MS:g} ms"
            lines.append(Judged(of, "p99", wanted, f"{p99_ms:.1f} ms", verdict, doubt))
    return lines + _absent(found)


def _absent(found: Sequence[Tail]) -> list[Judged]:
    """Judge rates at which ours was not measured, because it left too much unserved before."""
    dropped = [each for each in found if each.server == OURS and each.unserved > OVERLOADED]
    return [
        Judged(f"{share:.0%} of mosec's", "p99", "<= mosec's", "unserved", "missed")
        for share in SHARES
        if any(share > each.share for each in dropped)
    ]


def print_tails(console: Console, found: Sequence[Tail], title: str) -> None:
    """Print a table of all rates, and why requests were not served."""
    table, last = table_of(COLUMNS, title, names=2), found[0].share
    for each in found:
        if each.share != last:
            table.add_section()
        last, told = each.share, each.told()
        p99 = told["p99_ms_by_turn"]
        table.add_row(
            *(f"{each.share:.0%}", title_of(each.server), f"{each.offered_per_s:,.0f}"),
            *(f"{told['p50_ms']:,.1f}", f"{told['p99_ms']:,.1f}"),
            *(f"{min(p99):,.1f}..{max(p99):,.1f}", f"{told['p99_9_ms']:,.1f}"),
            *(f"{each.unserved:.2%}", f"{told['lag_p99_ms']:,.1f}", f"{told['cpu_us']:,.0f}"),
        )
    console.print(table)
    console.print(
        "open loop, Poisson arrivals, the same for all servers; latencies count from the moment at "
        "which a request was due; p50 and p99: medians of the turns; p99.9: of all their requests; "
        "lag: delay of the generator itself, a part of all latencies; a server that leaves "
        f"more than {OVERLOADED:.0%} unserved is not measured at higher rates"
    )
    for each in found:
        if each.reasons:
            reason, count = each.reasons.most_common(1)[0]
            where = f"{title_of(each.server)} at {each.share:.0%}"
            console.print(f"{where}: {count} times {reason[:300]}", markup=False)
