"""Runs a whole benchmark: for each workload all servers in turns, one awake at a time."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from loadtests.bench import wrk
from loadtests.bench.artifacts import ArtifactError, manifest_of, newest_artifact
from loadtests.bench.launch import TITLES, ServedArtifact, others_of, spec_of, workers_of
from loadtests.bench.machine import Site, prepare, share_stalled
from loadtests.bench.measuring import Bench, TurnFigures, check_same
from loadtests.bench.options import QUICK_ROUNDS, ROUNDS
from loadtests.bench.report import Round, Spread, as_json, print_figures, turns
from loadtests.bench.servers import Fleet
from loadtests.bench.workloads import (
    BEFORE,
    DIGITS,
    MINILM,
    NAMES,
    OUR_OWN,
    OURS,
    QUICK,
    QUICK_SERVERS,
    SERVERS,
    Workload,
    select,
)
from loadtests.errors import LoadTestError
from loadtests.reports import Json, cut_short, write

TABLE_WIDTH = 135  # a narrower terminal breaks lines, which is better than truncated figures
STALL_S = 0.3
Say = Callable[[str], object]


def bench(args: argparse.Namespace, console: Console, command: str) -> int:
    console.width = max(console.width, TABLE_WIDTH)
    generator, digits = wrk.version(), newest_artifact(args.artifacts, DIGITS)
    site = prepare(args, console, command)
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    console.print(f"{digits}; load by {generator}")
    console.print(f"{rounds} round(s), a turn of {args.seconds} s for each server")
    session = Session(args, rounds, site, console.print)
    try:
        session.run()
    finally:  # write the results so far, even if the rest is missing
        if session.results:
            facts = {
                **site.conditions,
                "generator": generator,
                "rounds": rounds,
                "seconds": args.seconds,
                "left_out": session.left_out,
                "stalled": Spread.of(session.stall_shares),
                "load_average_after": round(os.getloadavg()[0], 2),
                "incomplete": cut_short(),
            }
            print_figures(console, session.results)
            console.print(_where_and_when(facts))
            write(args.out, "bench", as_json(session.results, facts), console)
    return 0


@dataclass(slots=True)
class Session:
    """Runs the requested measurements.

    Attributes:
        results: by name and title of the workload.
        left_out: why a server was not measured, by workload and server.
        stall_shares: for each round, the share of the time before it in which the server's core did
            not run a ready process, while all servers were paused.
    """

    options: argparse.Namespace
    rounds: int
    site: Site
    say: Say
    results: dict[str, list[Round]] = field(default_factory=dict)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    stall_shares: list[float] = field(default_factory=list)
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def run(self) -> None:
        """Measure all workloads, in the order of the table.

        Raises:
            LoadTestError: if a number would be invalid.
        """
        options = self.options
        workloads = select(options.workloads or (QUICK if options.quick else NAMES))
        for model in (DIGITS, MINILM):
            of_model = [each for each in workloads if each.model == model]
            if not of_model:
                continue
            try:
                folder = newest_artifact(options.artifacts, model)
            except ArtifactError as error:
                self.say(f"workloads of {model} are left out: {error}")
                self.left_out |= {each.name: {OURS: str(error)} for each in of_model}
                continue
            with self._bench(folder) as bench:
                for workload in of_model:
                    self._workload(bench, workload)

    @contextlib.contextmanager
    def _bench(self, folder: Path) -> Iterator[Bench]:
        before = self.options.before and self.options.before.absolute()
        serving = ServedArtifact(folder.absolute(), self.site.cores, self.site.package, before)
        manifest, seconds = manifest_of(folder), self.options.seconds
        with Fleet() as fleet, tempfile.TemporaryDirectory() as scratch:
            yield Bench(fleet, serving, manifest, seconds, Path(scratch))

    def _workload(self, bench: Bench, workload: Workload) -> None:
        options = self.options
        servers = options.servers or (QUICK_SERVERS if options.quick else SERVERS)
        others, left_out = others_of(workload, tuple(servers), before=bool(options.before))
        self.left_out[workload.name] = left_out
        for server, reason in left_out.items():
            self.say(f"{workload.name}: {TITLES[server]} is left out: {reason}")
        self._start(bench, workload, [OURS, *others])
        rounds: list[Round] = []
        for number in range(self.rounds):
            self.stall_shares.append(share_stalled(self.site.cores, STALL_S))
            figures: dict[str, TurnFigures] = {}
            for server in turns([OURS, *others], number):
                if server not in left_out:
                    with self._left_out(workload, server):
                        figures[server] = bench.measure(server, workload, next(self._seeds))
            rounds.append(figures)
            self.results[f"{workload.name}: {workload.title}"] = (
                rounds  # even if the next one is not finished
            )
            summary = ", ".join(
                f"{name} {each.requests_per_s:,.0f}" for name, each in figures.items()
            )
            self.say(f"{workload.name}, round {number + 1}: {summary}")

    def _start(self, bench: Bench, workload: Workload, servers: list[str]) -> None:
        """Start the servers of this workload and end all others, because each uses memory."""
        specs = {server: spec_of(server, workload, bench.serving) for server in servers}
        for spec in bench.fleet.specs:
            if spec not in specs.values():
                bench.fleet.stop(spec)
        answers = None
        for server, spec in specs.items():  # ours first
            with self._left_out(workload, server):
                bench.fleet.start(spec)
                theirs = bench.answers(server, workload)
                answers = theirs if answers is None else answers
                if answers is not None:
                    check_same(answers, theirs)
        for server in (OURS, BEFORE):
            if server in specs and bench.serving.package_of(server):
                bench.check_compiled(server, workload)
        if workload.shared:
            self.say(f"{workload.name}: {workers_of(workload)} workers of each server but ours")

    @contextlib.contextmanager
    def _left_out(self, workload: Workload, server: str) -> Iterator[None]:
        """Continue without a failing reference; without ours there is no figure."""
        try:
            yield
        except LoadTestError as error:
            if server in OUR_OWN:
                raise
            self.say(f"{workload.name}: {TITLES[server]} is left out: {error}")
            self.left_out[workload.name][server] = str(error)


def _where_and_when(facts: Json) -> str:
    """Describe how busy the machine was."""
    stall = facts["stalled"]
    return (
        f"{facts['machine']}, {facts['date']}: the server's core was stalled for "
        f"{stall.median:.1%} ({stall.low:.1%}..{stall.high:.1%}) of the time without any "
        f"load; load average {facts['load_average']} before, {facts['load_average_after']} after"
    )
