"""The comparison on real networks: its requests, the check of answers, its figures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtests.networks import compare
from loadtests.networks.compare import CASES, NetworkCase, NetworkError


def small(case: NetworkCase) -> NetworkCase:
    fields = {name: getattr(case, name) for name in NetworkCase.__slots__}
    return NetworkCase(**fields | {"different": 3})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("ours", [True, False])
def test_requests_are_complete_and_all_different(case: NetworkCase, ours: bool) -> None:
    case = small(case)
    requests = compare._requests(case, "/x", compare._bodies(case), ours=ours)
    sent = [requests.request(number) for number in range(len(requests.templates))]
    assert len(set(sent)) == case.different
    for request in sent:
        head, _, body = request.partition(b"\r\n\r\n")
        assert head.startswith(b"POST /x HTTP/1.1\r\n")
        assert b"Content-Type: %s" % case.media_type.encode() in head
        assert head.endswith(b"Content-Length: %d" % len(body))
    if case.media_type == compare.JSON:
        asked: Any = json.loads(sent[0].partition(b"\r\n\r\n")[2])
        assert set(asked["input"] if ours else asked) == {"ids", "mask"}


@pytest.mark.parametrize(
    ("theirs", "fits"),
    [
        ({"a": 1.0, "b": 0.5}, True),
        ({"a": 1.0, "c": 0.4}, True),  # the best classes of both may differ
        ({"a": 1.0, "b": 0.502}, False),
        ({"c": 1.0}, False),
    ],
)
def test_servers_that_compute_something_else_are_not_compared(
    theirs: dict[str, float], fits: bool
) -> None:
    ours = [{"a": 1.0, "b": 0.5}]
    if fits:
        compare._check(CASES[0], ours, [theirs])
        return
    with pytest.raises(NetworkError, match="mobilenet: the servers disagree"):
        compare._check(CASES[0], ours, [theirs])
