"""Renders a workload's calls as HTTP requests, and judges the answers by their expectations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtests.openloop.address import Address
from loadtests.openloop.connection import Response
from loadtests.traffic.calls import Call, Expectation
from loadtests.traffic.target import with_key
from loadtests.traffic.workloads import Workload


class JudgedCalls:
    """See `loadtests.openloop.sender.Requests`.

    Args:
        address: of the server, for the Host header.
        workload: the source of calls.
        headers: of all requests, in addition to those of the calls.
    """

    def __init__(
        self, address: Address, workload: Workload, headers: Mapping[str, str] | None = None
    ) -> None:
        self._address, self._workload, self._all = address, workload, headers or {}
        self._heads: dict[tuple[str, ...], bytes] = {}
        self._expected: list[Expectation] = []  # without the calls, whose bodies are rendered

    def draw(self) -> bytes:
        call = self._workload.draw()
        self._expected.append(call.expected)
        key = (call.path, *call.headers, *call.headers.values())
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = self._head(call)
        return b"%b%d\r\n\r\n%b" % (head, len(call.body), call.body)

    def problems(self, responses: Sequence[Response | None]) -> list[str | None]:
        expected, self._expected = self._expected, []
        return [
            None if got is None else each.problem(got.status, got.headers, got.body)
            for each, got in zip(expected, responses, strict=True)
        ]

    def _head(self, call: Call) -> bytes:
        lines = [f"POST {call.path} HTTP/1.1", f"Host: {self._address}"]
        lines += [
            f"{name}: {value}" for name, value in with_key({**call.headers, **self._all}).items()
        ]
        return "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")
