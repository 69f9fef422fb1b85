"""The whole table: both models, every server, one after the other."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.bench.answers import CheckError
from loadtests.bench.environments import COMPILED, why_not
from loadtests.bench.generator import LoadError
from loadtests.bench.references import TITLES, Contestant, Serving, spec_of
from loadtests.bench.servers import Cores, ServerError, ServerSpec, pinned
from loadtests.bench.workloads import MOSEC, OURS
from loadtests.overload import cases
from loadtests.overload.cases import SERVERS, Case, CaseName
from loadtests.overload.loads import Load
from loadtests.overload.measuring import Measured, Measuring, Plan, Subject

SECONDS, QUICK_SECONDS = 5.0, 2.0
QUICK_SERVERS = (OURS,)


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for.

    Attributes:
        item_ms: of the linear model.
        digits_cores: share of a core of every server of digits.
        package: the folder from which ours runs; None: the checkout.
    """

    models: tuple[CaseName, ...]
    servers: tuple[str, ...]
    plan: Plan
    item_ms: float
    digits_cores: float
    package: Path | None

    @classmethod
    def of(cls, given: argparse.Namespace) -> Options:
        """From the command line."""
        seconds = given.seconds or (QUICK_SECONDS if given.quick else SECONDS)
        return cls(
            models=tuple(given.models),
            servers=tuple(given.servers or (QUICK_SERVERS if given.quick else SERVERS)),
            plan=Plan(tuple(sorted(given.loads)), seconds, given.deadline_ms),
            item_ms=given.item_ms,
            digits_cores=given.digits_cores,
            package=None if given.pure else COMPILED,
        )


@dataclass(slots=True)
class Session:
    """Measures what the options ask for.

    Attributes:
        digits: the folder of its artifact; None where it is not asked for.
        say: to whoever waits.
        results: what is there.
        left_out: why a server was not measured, by model and server.
        titles: of the models.
    """

    options: Options
    cores: Cores
    digits: Path | None
    say: Callable[[str], object]
    results: list[Measured] = field(default_factory=list)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Measure.

        Raises:
            BodiesError, CheckError, LoadError, ModelError, ServerError: if a number would not mean
                what it says.
        """
        with contextlib.closing(self._cases()) as cases_in_turn:
            for case in cases_in_turn:
                self.titles[case.name] = case.title
                for server in self.options.servers:
                    reason = why_not(server) or self._measured(case, server)
                    if reason is not None:
                        self.say(f"{case.name}: {TITLES[server]} is left out: {reason}")
                        self.left_out.setdefault(case.name, {})[server] = reason

    def _measured(self, case: Case, server: str) -> str | None:
        """Measure one server; why it could not be, if so. Without ours there is no table."""

        def tell(load: Load) -> None:
            at = f"{load.offer.times:g}x ({load.offered_per_s:,.0f}/s)"
            self.say(
                f"{case.name}, {TITLES[server]}, {at}: "
                f"{load.goodput_per_s:,.1f}/s in time, {load.refused_share:.1%} refused"
            )

        share = self.options.digits_cores if case.name == "digits" else None
        whole = share is None or share >= 1
        spec = self._spec(case, server)
        bounded = (lambda holds: self._bounded(spec, holds)) if server == MOSEC else None
        subject = Subject(server, case, spec, None if whole else share, bounded)
        try:
            measuring = Measuring(self.cores, self.options.plan, tell)
            self.results.append(measuring.measure(subject))
        except (CheckError, LoadError, ServerError) as error:
            if server == OURS:
                raise
            return str(error)
        return None

    def _cases(self) -> Generator[Case, None, None]:
        """Each is ready when it is its turn, and gone after it."""
        if "linear" in self.options.models:
            self.say(f"making a model of {self.options.item_ms:g} ms an item")
            with tempfile.TemporaryDirectory() as folder:
                with pinned(self.cores.server):
                    case = cases.linear(Path(folder), self.options.item_ms)
                yield case
        if self.digits is not None:
            with cases.digits(self.digits) as case:
                yield case

    def _spec(self, case: Case, server: str) -> ServerSpec:
        """As in the bench."""
        serving = Serving(case.folder.absolute(), self.cores, (), self.options.package)
        contestant = Contestant(server) if server == OURS else Contestant(server, "script")
        return spec_of(contestant, case.workload, serving)

    def _bounded(self, spec: ServerSpec, holds_per_s: float) -> ServerSpec:
        """Mosec as who knows its figures would start it for this deadline.

        It drops what has waited for longer. In it are no more requests than it can answer in half
        of that time, for each of them may find as many before it in a batch that runs.
        """
        deadline_ms = self.options.plan.deadline_ms
        most = max(1, round(holds_per_s * deadline_ms / 1000 / 2))
        own = (("BENCH_TIMEOUT_MS", str(deadline_ms)), ("BENCH_CAPACITY", str(most)))
        return dataclasses.replace(spec, environment=(*spec.environment, *own))
