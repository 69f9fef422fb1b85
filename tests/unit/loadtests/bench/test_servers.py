"""Servers of the benchmark: ready or a reason why not, pinned while they start, gone afterwards."""

from __future__ import annotations

import os

import pytest

from loadtests.bench.servers import (
    Cores,
    ServerError,
    ServerSpec,
    choose_cores,
    fetch,
    pinned,
    running,
)

BARE = ServerSpec("bare", ("-m", "loadtests.bench.bare_asgi", "--port", "{port}"))
needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="the system cannot pin processes"
)


@needs_affinity
def test_a_server_runs_on_its_core_answers_and_is_gone_afterwards() -> None:
    cores = os.sched_getaffinity(0)
    with running([BARE], core=max(cores)) as (server,):
        assert os.sched_getaffinity(server.process.pid) == {max(cores)}
        assert os.sched_getaffinity(0) == cores
        assert fetch(server.port, "POST", "/predict", b"{}") == (200, b"{}")
    assert server.process.returncode is not None
    with pytest.raises(ServerError, match="no answer to GET /"):
        fetch(server.port, "GET", "/")


def test_a_server_that_does_not_start_says_why() -> None:
    spec = ServerSpec("broken", ("-c", "raise SystemExit('no such model')"))
    with (
        pytest.raises(ServerError, match=r"exit code 1 before it was ready(.|\n)*no such model"),
        running([spec], core=None),
    ):
        raise AssertionError("it must not be said to be ready")


@needs_affinity
def test_load_and_server_get_different_cores_where_there_are_two() -> None:
    usable = sorted(os.sched_getaffinity(0))
    with pinned(usable[0]):
        assert choose_cores() == Cores(None, None)
    cores = choose_cores()
    assert (cores.server is None) == (len(usable) == 1)
    assert cores.server is None or cores.server != cores.generator
