"""A receiver of OTLP that others wrote, rotel, and what it says it got."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

from tests.e2e.server import free_port

LIMIT_S = 20.0
FIELDS = {"Trace ID": "trace_id", "Parent ID": "parent_id", "ID": "span_id", "Name": "name"}


@dataclass
class Received:
    """A span; ids in hexadecimal, the parent's is empty where there is none."""

    trace_id: str = ""
    parent_id: str = ""
    span_id: str = ""
    name: str = ""
    status: str = ""
    links: list[str] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    resource: dict[str, str] = field(default_factory=dict)


@dataclass
class Receiver:
    """A running one; `log` is what it writes."""

    grpc_port: int
    http_port: int
    log: Path

    def spans(self) -> list[Received]:
        """All that have come."""
        return parsed(self.log.read_text())

    def wait_for(self, enough: Callable[[list[Received]], bool]) -> list[Received]:
        """All that have come, once they are enough."""
        deadline = time.monotonic() + LIMIT_S
        while not enough(found := self.spans()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not enough spans have come: {self.log.read_text()[-4000:]}")
            time.sleep(0.05)
        return found


def parsed(text: str) -> list[Received]:
    """The spans in what the receiver writes."""
    found: list[Received] = []
    resource: dict[str, str] = {}
    attributes: dict[str, str] = {}
    is_link = False
    for line in text.splitlines():
        if line.startswith("ResourceSpans #"):
            attributes = resource = {}
        elif line.startswith("Span #"):
            found.append(Received(resource=resource))
            attributes, is_link = found[-1].attributes, False
        elif line.startswith("SpanLink #"):
            is_link = True
        elif line.startswith(("SpanEvent #", "Events:")):
            attributes, is_link = {}, False
        elif part := re.match(r" +-> ([\w.]+): \w+\((.*)\)$", line):
            attributes[part[1]] = part[2]
        elif part := re.match(r" +(?:-> )?([\w ]+?) *: (\w.*)$", line):
            if is_link:
                if part[1] == "ID":
                    found[-1].links.append(part[2])
            elif part[1] in FIELDS:
                setattr(found[-1], FIELDS[part[1]], part[2])
            elif part[1] == "Status code":
                found[-1].status = part[2].removeprefix("STATUS_CODE_")
    return found


@contextlib.contextmanager
def receiving(folder: Path) -> Iterator[Receiver]:
    """A receiver on free ports; ended by its process id."""
    program = distribution("rotel").locate_file("rotel/rotel-agent")
    made = Receiver(free_port(), free_port(), folder / "rotel.log")
    command = [
        *(str(program), "start", "--exporter", "blackhole"),
        *("--otlp-grpc-endpoint", f"127.0.0.1:{made.grpc_port}"),
        *("--otlp-http-endpoint", f"127.0.0.1:{made.http_port}"),
        *("--debug-log", "traces", "--debug-log-verbosity", "detailed"),
    ]
    with made.log.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + LIMIT_S
            while "Starting Rotel" not in made.log.read_text() and time.monotonic() < deadline:
                time.sleep(0.02)
            yield made
        finally:
            process.kill()
