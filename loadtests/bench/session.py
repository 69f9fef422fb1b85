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
from loadtests.bench.acceptance import judge
from loadtests.bench.answers import answers_of
from loadtests.bench.environments import check_machine_code
from loadtests.bench.launch import (
    TITLES,
    Contestant,
    Serving,
    contestants,
    spec_of,
    title_of,
    told_workers,
)
from loadtests.bench.limits import limit
from loadtests.bench.machine import Place, prepare
from loadtests.bench.measuring import Bench, Measured
from loadtests.bench.options import Options
from loadtests.bench.own_models import (
    MINILM,
    ModelError,
    manifest_of,
    mean_artifact,
    newest_artifact,
)
from loadtests.bench.report import as_json, print_figures
from loadtests.bench.results import Round, Spread, turns
from loadtests.bench.servers import Fleet, ServerError, ServerSpec
from loadtests.bench.stalls import share_stalled
from loadtests.bench.workloads import (
    BEFORE,
    ENCODER_LIMIT,
    LIMIT,
    OUR_OWN,
    OURS,
    PLAIN_ENCODER,
    LimitKind,
    ModelName,
    Workload,
    chosen,
)
from loadtests.errors import LoadTestError
from loadtests.reports import Json, cut_short, print_judged, write

TABLE_WIDTH = 125  # a narrower terminal breaks lines, which is better than truncated figures
STALL_S = 0.3
NAN = float("nan")
Say = Callable[[str], object]


def bench(given: argparse.Namespace, console: Console, command: str) -> int:
    """Measure, print, write; return the exit code.

    A missed demand is an ordinary result: it is reported, and the exit code is 0.
    """
    console.width = max(console.width, TABLE_WIDTH)
    options, generator, folder = Options.of(given), wrk.version(), newest_artifact(given.artifacts)
    if options.before:
        check_machine_code(options.before, "--before needs an earlier commit's .compiled")
    place = prepare(given, console, command)
    console.print(f"{folder}; load by {generator}")
    console.print(f"{options.rounds} round(s), a turn of {options.seconds} s for each server")
    session = Session(options, place, folder, console.print)
    try:
        session.run()
    finally:  # write the results so far, even if the rest is missing
        if session.results:
            found = {
                **place.conditions,
                "generator": generator,
                "rounds": options.rounds,
                "seconds": options.seconds,
                "left_out": session.left_out,
                "retried": session.retried,
                "workers": session.workers,
                "stalled": Spread.of(session.stalled),
                "load_average_after": round(os.getloadavg()[0], 2),
                "incomplete": cut_short(),
            }
            judged = judge(session.results, found)
            print_figures(console, session.results)
            console.print(_where_and_when(found))
            print_judged(console, judged)
            write(given.out, "bench", as_json(session.results, judged, found), console)
    return 0


@dataclass(slots=True)
class Session:
    """Runs the requested measurements.

    Attributes:
        results: by workload.
        left_out: why a server was not measured, by workload and server.
        retried: failures of other servers that were measured again, with reasons.
        workers: of our server, by workload that shares all cores.
        stalled: for each round, the share of the time before it in which the server's core did not
            run a ready process, while all servers were paused.
    """

    options: Options
    place: Place
    digits: Path
    say: Say
    results: dict[str, list[Round]] = field(default_factory=dict)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    retried: list[str] = field(default_factory=list)
    workers: dict[str, int] = field(default_factory=dict)
    stalled: list[float] = field(default_factory=list)
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def run(self) -> None:
        """Measure all workloads, in the order of the table.

        Raises:
            LoadTestError: if a number would be invalid.
        """
        models: list[ModelName] = ["digits", "mean", "minilm"]
        for model in models:
            of_model = [each for each in chosen(self.options.workloads) if each.model == model]
            if not of_model:
                continue
            try:
                folder = self._folder(model)
            except ModelError as error:
                if model != MINILM:
                    raise
                self.say(f"workloads of {model} are left out: {error}")
                self.left_out |= {each.name: {OURS: str(error)} for each in of_model}
                continue
            with self._bench(folder) as bench:
                for workload in of_model:
                    self._workload(bench, workload)

    def _folder(self, model: ModelName) -> Path:
        """Return the artifact of a model."""
        if model == "minilm":
            return newest_artifact(self.digits.parent.parent, MINILM)
        return self.digits if model == "digits" else mean_artifact()

    @contextlib.contextmanager
    def _bench(self, folder: Path) -> Iterator[Bench]:
        before = self.options.before and self.options.before.absolute()
        serving = Serving(folder.absolute(), self.place.cores, self.place.package, before)
        manifest, seconds = manifest_of(folder), self.options.seconds
        with (
            Fleet() as fleet,
            answers_of(folder) as right,
            tempfile.TemporaryDirectory() as scratch,
        ):
            yield Bench(fleet, serving, manifest, right, seconds, Path(scratch))

    def _workload(self, bench: Bench, workload: Workload) -> None:
        options = self.options
        found, left_out = contestants(workload, options.servers, bench.precisions)
        for server, reason in left_out.items():
            self.say(f"{workload.name}: {TITLES[server]} is left out: {reason}")
        self.left_out[workload.name] = left_out
        self._start(bench, workload)
        gone = self.left_out[workload.name]
        others = {contestant.key: contestant for contestant in found}
        limits = [LIMIT] if workload.limit else []
        if PLAIN_ENCODER in others and workload.limit:
            limits.append(ENCODER_LIMIT)
        rounds: list[Round] = []
        for number in range(options.rounds):
            self.stalled.append(share_stalled(self.place.cores, STALL_S))
            made: dict[str, Measured] = {}
            for key in turns([OURS, *others, *limits], number):
                if key in limits:
                    made[key] = self._limit(bench, workload, key)
                elif key not in gone:
                    contestant = others.get(key, Contestant(OURS))
                    measured = self._run(bench, workload, contestant)
                    made |= {key: measured} if measured is not None else {}
            rounds.append(made)
            self.results[workload.name] = rounds  # even if the next one is not finished
            self.say(f"{workload.name}, round {number + 1}: {_told(made)}")

    def _start(self, bench: Bench, workload: Workload) -> None:
        """Start the servers of this workload and end all others, because each uses memory."""
        specs = self._specs(bench, workload)
        for spec in bench.fleet.specs:
            if spec not in specs.values():
                bench.fleet.stop(spec)
        for key, spec in specs.items():
            try:
                bench.fleet.start(spec)
            except ServerError as error:
                self._leave_out(workload.name, key, error)
        for server in (OURS, BEFORE):
            if server in specs and bench.serving.package_of(server):
                bench.check_compiled(Contestant(server), workload)
        if workload.shared:
            self.workers[workload.name] = bench.workers(Contestant(OURS), workload)
            self.say(f"{workload.name}: {told_workers(self.workers[workload.name])}")

    def _leave_out(self, workload: str, key: str, error: Exception) -> None:
        """Continue without a failing reference; without ours there is no figure."""
        if key in OUR_OWN:
            raise error
        self.say(f"{workload}: {title_of(key)} is left out: {error}")
        self.left_out.setdefault(workload, {})[key] = str(error)

    def _specs(self, bench: Bench, workload: Workload) -> dict[str, ServerSpec]:
        others, _ = contestants(workload, self.options.servers, bench.precisions)
        everyone = [Contestant(OURS), *others]
        return {each.key: spec_of(each, workload, bench.serving) for each in everyone}

    def _run(self, bench: Bench, workload: Workload, contestant: Contestant) -> Measured | None:
        """Measure one server; None: it is left out.

        A failing reference is restarted and measured once more, which the report mentions. Ours is
        not: its behaviour under load is the subject of the benchmark.
        """
        try:
            return bench.measured(contestant, workload, next(self._seeds))
        except LoadTestError as error:
            if contestant.server in OUR_OWN:
                raise
            title = title_of(contestant.key)
            self.say(f"{workload.name}: {title} is restarted: {error}")
            self.retried.append(f"{workload.name}: {title}: {error}")
        spec = spec_of(contestant, workload, bench.serving)
        try:
            bench.fleet.stop(spec)
            bench.fleet.start(spec)
            return bench.measured(contestant, workload, next(self._seeds))
        except LoadTestError as error:
            self._leave_out(workload.name, contestant.key, error)
        return None

    def _limit(self, bench: Bench, workload: Workload, key: str) -> Measured:
        """Measure parsing and the forward alone."""
        if workload.limit is None:
            raise ValueError(f"bug: {workload.name} has no limit")
        kind: LimitKind = "encoder" if key == ENCODER_LIMIT else workload.limit
        per_s, cpu_s = limit(kind, bench.serving.folder, self.place.cores.server)
        return Measured(per_s, NAN, NAN, cpu_s * 1e6, 0)


def _told(made: Round) -> str:
    return ", ".join(f"{key} {each.requests_per_s:,.0f}" for key, each in made.items())


def _where_and_when(found: Json) -> str:
    """Describe how busy the machine was."""
    stalled = found["stalled"]
    return (
        f"{found['machine']}, {found['date']}: the server's core was stalled for "
        f"{stalled.median:.1%} ({stalled.low:.1%}..{stalled.high:.1%}) of the time without any "
        f"load; load average {found['load_average']} before, {found['load_average_after']} after"
    )
