"""The servers: ours, its peers and the floor; how each is started, and what it cannot do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadtests.bench.environments import PEERS, ROOT, WITH_ENVIRONMENT, python_of, why_not
from loadtests.bench.servers import Cores, ServerSpec
from loadtests.bench.workloads import (
    BARE,
    CACHED,
    LIMIT,
    LITSERVE,
    MLSERVER,
    MOSEC,
    OUR_OWN,
    OURS,
    PLAIN,
    Workload,
)

ForwardKind = Literal["script", "plan"]
SHARED_WORKERS = 2
CACHE_BYTES = "256MiB"  # the default
TITLES = {
    OURS: "Torchlane",
    CACHED: "Torchlane, with its cache",
    MOSEC: "mosec",
    PLAIN: "plain FastAPI",
    LITSERVE: "LitServe",
    MLSERVER: "MLServer",
    BARE: "bare ASGI",
    LIMIT: "parsing and forward alone",
}
READY_PATHS = {
    OURS: "/health/ready",
    CACHED: "/health/ready",
    PLAIN: "/openapi.json",
    LITSERVE: "/health",
    MLSERVER: "/v2/health/ready",
}
NO_BINARY = {
    LITSERVE: "LitServe reads JSON and forms, no binary bodies",
    MLSERVER: "MLServer's REST reads JSON only; binary tensors come by gRPC",
}


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server with one way to run the model.

    Attributes:
        forward: `script` as its users would run it, `plan` by the very forward of ours; ours and
            the floor have one way only.
        workers: processes that run the model.
    """

    server: str
    forward: ForwardKind | None = None
    workers: int = 1

    @property
    def key(self) -> str:
        """In the report: `mosec`, `mosec+plan` where it runs our forward, `mosec*2` with two."""
        forward = "+plan" if self.forward == "plan" else ""
        return self.server + forward + (f"*{self.workers}" if self.workers > 1 else "")


@dataclass(frozen=True, slots=True)
class Serving:
    """What the servers get.

    Attributes:
        folder: the artifact of one version.
        shared_environment: ours where server and load share all cores, as NAME=VALUE.
        package: the folder from which ours runs; None: the checkout.
    """

    folder: Path
    cores: Cores
    shared_environment: tuple[tuple[str, str], ...] = ()
    package: Path | None = None


def title_of(key: str) -> str:
    """A server of the report, for people."""
    server, _, forward = key.partition("*")[0].partition("+")
    workers = key.partition("*")[2]
    return (
        TITLES[server]
        + (", our forward" if forward else "")
        + (f", {workers} workers" if workers else "")
    )


def contestants(
    workload: Workload, servers: tuple[str, ...], forwards: tuple[ForwardKind, ...]
) -> tuple[list[Contestant], dict[str, str]]:
    """Who stands beside ours, and why others do not, by server.

    Args:
        workload: what is measured.
        servers: that were asked for.
        forwards: ways to run the model that were asked for.
    """
    beside: list[Contestant] = []
    left_out: dict[str, str] = {}
    for server in workload.beside:
        if server not in servers:
            continue
        reason = why_not(server)
        if reason is None and workload.body == "binary":
            reason = NO_BINARY.get(server)
        if reason is not None:
            left_out[server] = reason
        elif server in (BARE, CACHED):
            beside.append(Contestant(server))
        elif workload.shared:  # with one worker and with two: nobody can know which is better
            beside += [Contestant(server, "script", workers) for workers in (1, SHARED_WORKERS)]
        else:
            beside += [
                Contestant(server, forward) for forward in forwards if _differs(forward, workload)
            ]
    return beside, left_out


def _differs(forward: ForwardKind, workload: Workload) -> bool:
    """Whether it makes a difference: a model without weights has one form only."""
    return forward == "script" or workload.model == "digits"


def spec_of(contestant: Contestant, workload: Workload, serving: Serving) -> ServerSpec:
    """How to start a contestant for a workload."""
    core = None if workload.shared else serving.cores.server
    server = contestant.server
    if server in OUR_OWN:
        command: tuple[str, ...] = (sys.executable, "-m", "app")
        environment = _own(serving) + (serving.shared_environment if workload.shared else ())
        cache = CACHE_BYTES if server == CACHED or workload.repeated else "0"
        environment += (("TORCHLANE_CACHE_BYTES", cache),)
    else:
        command = _command(server)
        environment = (
            ("PYTHONPATH", str(ROOT)),
            ("BENCH_ARTIFACT", str(serving.folder)),
            ("BENCH_FORWARD", contestant.forward or "script"),
            ("BENCH_BODY", "any" if server == BARE else workload.body),
            ("BENCH_PORT", "{port}"),
            ("BENCH_WORKERS", str(contestant.workers)),
        )
        if server == MLSERVER:
            environment += (
                ("MLSERVER_HTTP_PORT", "{port}"),
                ("MLSERVER_GRPC_PORT", "{other_port}"),
                (
                    "MLSERVER_PARALLEL_WORKERS",
                    str(contestant.workers if contestant.workers > 1 else 0),
                ),
            )
    return ServerSpec(
        title_of(contestant.key), command, environment, READY_PATHS.get(server, "/"), core
    )


def _own(serving: Serving) -> tuple[tuple[str, str], ...]:
    model, repository = serving.folder.parent.name, serving.folder.parent.parent
    return (
        ("TORCHLANE_HOST", "127.0.0.1"),
        ("TORCHLANE_PORT", "{port}"),
        ("TORCHLANE_MODEL_DIR", str(repository)),
        ("TORCHLANE_DEFAULT_MODEL", model),
        ("TORCHLANE_DEVICES", "cpu"),  # one core is compared with one core, also beside a GPU
        *_running_from(serving.package),
    )


def _running_from(package: Path | None) -> tuple[tuple[str, str], ...]:
    """Without the second, Python would take the working directory's packages first."""
    return () if package is None else (("PYTHONPATH", str(package)), ("PYTHONSAFEPATH", "1"))


def _command(server: str) -> tuple[str, ...]:
    if server == MLSERVER:
        return (str(python_of(server)), "-m", "mlserver.cli.main", "start", str(PEERS / server))
    python = str(python_of(server)) if server in WITH_ENVIRONMENT else sys.executable
    return (python, str(PEERS / server / "server.py"))
