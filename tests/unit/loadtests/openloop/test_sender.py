"""A trial of real requests to a real port: what is drawn, what is judged."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from loadtests.openloop.address import ServerAddress
from loadtests.openloop.generator import NO_ANSWER, TrialLimits, TrialTooLarge
from loadtests.openloop.sender import ArrivalKind, Kind, Sender, TrialPlan, longest_s
from loadtests.traffic.calls import LoadCall

LIMITS = TrialLimits(16, 2.0)


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

    def draw(self) -> LoadCall:
        body = b"%d" % self.drawn + self.padding
        self.drawn += 1
        return LoadCall("/echo", {"Content-Type": "text/plain"}, body, 1, Echo(body))


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
            status, content = fake.answers.get(body, (200, body))
            fake.heads.append({**dict(self.headers), "path": self.path})
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        fake = EchoServer(listening.server_port)
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield fake
        listening.shutdown()
        thread.join()


def make_sender(
    port: int,
    numbers: Numbers | None = None,
    limits: TrialLimits = LIMITS,
    arrivals: ArrivalKind = "uniform",
) -> Sender:
    address = ServerAddress("127.0.0.1", port)
    return Sender(address, (numbers or Numbers()).draw, arrivals, limits)


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
    outcomes, _ = make_sender(server.port).run(TrialPlan(50, 0.1, 0.1, seed=1))
    assert outcomes.kind.tolist() == [
        *(Kind.RIGHT, Kind.RIGHT, Kind.WRONG, Kind.REFUSED, Kind.REFUSED),
        *(Kind.ERROR, Kind.ERROR, Kind.GIVEN_UP, Kind.GIVEN_UP, Kind.WRONG),
    ]
    assert outcomes.reason[2] == "200: another answer"
    assert outcomes.hint_ms[3] == 40
    assert np.isnan(np.delete(outcomes.hint_ms, 3)).all()


def test_late_answer_is_a_failure(server: EchoServer) -> None:
    hasty = make_sender(server.port, limits=TrialLimits(16, 1e-6))
    outcomes, _ = hasty.run(TrialPlan(50, 0.1, 0.2, seed=1))
    assert outcomes.kind.tolist() == [Kind.GIVEN_UP] * 15
    assert set(outcomes.reason) == {NO_ANSWER}


def test_the_longest_trial_fits_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.openloop.sender.MAX_REQUEST_BYTES", 1_000_000)
    sender = make_sender(1, Numbers(padding=b"x" * 5000), arrivals="poisson")
    sender.prepare(TrialPlan(100, 0.1, 0.4, seed=1))
    seconds = longest_s(100, sender.request_bytes)
    sender.prepare(TrialPlan(100, 0.1, seconds - 0.1, seed=2))
    with pytest.raises(TrialTooLarge):
        sender.prepare(TrialPlan(100, 0.1, 2 * seconds, seed=2))
