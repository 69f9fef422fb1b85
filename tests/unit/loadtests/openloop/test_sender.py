"""A trial of real requests to a real port: what is drawn, what is judged."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from loadtests.capacity.finding import RunTrial, measuring
from loadtests.capacity.judged import JudgedCalls
from loadtests.capacity.search import Step
from loadtests.openloop.address import Address
from loadtests.openloop.arrivals import ArrivalKind
from loadtests.openloop.generator import UNANSWERED, Limits, TrialTooLarge
from loadtests.openloop.sender import Cost, Kind, Outcomes, Sender, TrialPlan
from loadtests.traffic.calls import Call

LIMITS = Limits(16, 2.0)


@dataclass(frozen=True)
class Echo:
    """Expects its own body back, and nothing else."""

    body: bytes

    def problem(self, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
        if status == 200 and headers["content-type"] == "text/plain" and body == self.body:
            return None
        return f"{status}: {body.decode()}"


@dataclass
class Numbers:
    """Calls with the bodies 0, 1, 2, ..."""

    drawn: int = 0
    padding: bytes = b""

    def draw(self) -> Call:
        body = b"%d" % self.drawn + self.padding
        self.drawn += 1
        return Call("/echo", {"Content-Type": "text/plain"}, body, 1, Echo(body))


@dataclass
class EchoServer:
    """Answers what it is told to for a body, or the body itself."""

    port: int
    answers: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    heads: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[EchoServer]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, content = told.answers.get(body, (200, body))
            told.heads.append({**dict(self.headers), "path": self.path})
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        told = EchoServer(listening.server_port)
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield told
        listening.shutdown()
        thread.join()


def make_sender(
    port: int,
    numbers: Numbers | None = None,
    limits: Limits = LIMITS,
    arrivals: ArrivalKind = "uniform",
) -> Sender:
    address = Address("127.0.0.1", port)
    return Sender(address, JudgedCalls(address, numbers or Numbers()), arrivals, limits)


def test_all_requests_are_sent_on_time_and_judged(server: EchoServer) -> None:
    made, cost = make_sender(server.port).run(TrialPlan(50, 0.4, 0.8, seed=1))
    assert len(server.heads) == len(made.due_s) == 60
    assert server.heads[0]["path"] == "/echo"
    assert server.heads[0]["Host"] == f"127.0.0.1:{server.port}"
    assert (made.done_s > made.due_s).all()
    assert (made.lag_s >= 0).all()
    assert not made.kind.any()
    assert not any(made.reason)
    assert cost.connections >= 1
    assert cost.starved == 0


def test_every_answer_is_classified(server: EchoServer) -> None:
    hint = b'{"code": "overloaded", "retry_after_ms": 40}'
    server.answers = {
        b"2": (200, b"another answer"),
        b"3": (503, hint),
        b"4": (429, b"not JSON"),
        b"5": (503, b'{"code": "shutting_down"}'),
        b"6": (500, b"broken"),
        b"7": (504, b"late"),
        b"8": (408, b"late"),
        b"9": (422, b"not understood"),
    }
    made, _ = make_sender(server.port).run(TrialPlan(50, 0.1, 0.1, seed=1))
    assert made.kind.tolist() == [
        *(Kind.RIGHT, Kind.RIGHT, Kind.WRONG, Kind.REFUSED, Kind.REFUSED),
        *(Kind.ERROR, Kind.ERROR, Kind.GIVEN_UP, Kind.GIVEN_UP, Kind.WRONG),
    ]
    assert made.reason[2] == "200: another answer"
    assert made.told_ms[3] == 40
    assert np.isnan(np.delete(made.told_ms, 3)).all()


def test_late_answer_is_a_failure(server: EchoServer) -> None:
    hasty = make_sender(server.port, limits=Limits(16, 1e-6))
    made, _ = hasty.run(TrialPlan(50, 0.1, 0.2, seed=1))
    assert made.kind.tolist() == [Kind.GIVEN_UP] * 15
    assert set(made.reason) == {UNANSWERED}


def test_requests_exceeding_the_memory_limit_are_refused(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtests.openloop.sender.MAX_REQUEST_BYTES", 1 << 20)
    large = make_sender(server.port, Numbers(padding=b"x" * 100_000))
    with pytest.raises(TrialTooLarge, match="need more than 1 MiB"):
        large.prepare(TrialPlan(50, 0.2, 0.2, seed=1))


def test_excessive_rate_is_refused_before_drawing_requests() -> None:
    numbers = Numbers()
    boundless = make_sender(1, numbers, arrivals="poisson")
    with pytest.raises(TrialTooLarge, match="need more than 512 MiB"):
        boundless.prepare(TrialPlan(1e12, 1, 9, seed=1))
    assert numbers.drawn == 0


async def test_the_host_header_of_an_ipv6_address_has_brackets() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/plain\r\n"
            writer.write(head + b"content-length: 0\r\n\r\n")

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        address = Address("::1", port, "127.0.0.1")
        named = Sender(address, JudgedCalls(address, Numbers()), "uniform", LIMITS)
        await asyncio.to_thread(named.run, TrialPlan(10, 0.1, 0.1, seed=1))
    assert {head.split(b"\r\n")[1] for head in seen} == {b"Host: [::1]:%d" % port}


def test_every_trial_has_new_arrivals_and_requests(server: EchoServer) -> None:
    numbers = Numbers()
    recording = Recording(make_sender(server.port, numbers, arrivals="poisson").run)
    measure = measuring(recording.run, settle_s=0.1, slo_ms=1000, seed=1)
    first, second = (measure(Step("search", 100, 0.3)) for _ in range(2))
    gaps = [np.diff(made.due_s)[:10].tolist() for made in recording.made]
    assert len(gaps[0]) == len(gaps[1]) == 10
    assert gaps[0] != gaps[1]
    assert numbers.drawn == len(server.heads) >= first.requests + second.requests
    assert first.goodput_per_s == pytest.approx(first.offered_per_s)


class Recording:
    """Keeps the outcomes of all trials."""

    def __init__(self, run_trial: RunTrial) -> None:
        self._run_trial = run_trial
        self.made: list[Outcomes] = []

    def run(self, plan: TrialPlan) -> tuple[Outcomes, Cost]:
        outcomes, cost = self._run_trial(plan)
        self.made.append(outcomes)
        return outcomes, cost
