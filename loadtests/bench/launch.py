"""The servers: ours, its peers and the baseline; how to start each, and its limitations."""

from __future__ import annotations

import sys
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from loadtests.bench.environments import PEERS, ROOT, WITH_ENVIRONMENT, python_of, why_not
from loadtests.bench.own_models import MINILM, WEIGHTS, weights
from loadtests.bench.servers import Cores, ServerSpec
from loadtests.bench.workloads import (
    BARE,
    BEFORE,
    BF16,
    ENCODER_LIMIT,
    INFINITY,
    INT8,
    KSERVE,
    LIMIT,
    LITSERVE,
    MLSERVER,
    MOSEC,
    NATIVE,
    OUR_OWN,
    OURS,
    PLAIN,
    PLAIN_ENCODER,
    PRECISIONS,
    PYTHON,
    PYTRITON,
    Workload,
)
from models.resources import usable_cores

MOST_WORKERS = 4  # the most that `auto` chooses (app/processes/worker_count.py)
# Workers of other servers if all cores are shared: as many as ours may start.
SHARED_WORKERS = tuple(sorted({1, min(usable_cores(), MOST_WORKERS)}))
TITLES = {
    OURS: "Torchlane",
    PYTHON: "Torchlane, Python",
    BEFORE: "Torchlane before",
    MOSEC: "mosec",
    PLAIN: "plain FastAPI",
    LITSERVE: "LitServe",
    MLSERVER: "MLServer",
    PYTRITON: "PyTriton",
    KSERVE: "KServe",
    NATIVE: "Torchlane, own routes",
    BF16: "Torchlane, bf16",
    INT8: "Torchlane, int8",
    INFINITY: "infinity",
    PLAIN_ENCODER: "plain FastAPI, encoder",
    BARE: "bare ASGI",
    LIMIT: "parsing and forward alone",
    ENCODER_LIMIT: "sentence-transformers alone",
}
READY_PATHS = {
    **dict.fromkeys(OUR_OWN, "/health/ready"),
    PLAIN: "/openapi.json",
    LITSERVE: "/health",
    INFINITY: "/health",
    PLAIN_ENCODER: "/openapi.json",
    MLSERVER: "/v2/health/ready",
    PYTRITON: "/v2/models/model/ready",
    KSERVE: "/v2/models/model/ready",
}
EITHER_BODY = (BARE, MLSERVER, PYTRITON, KSERVE)  # each request names its format
SLEEPLESS = (PYTRITON,)  # uses a quarter of a percent when idle; if stopped, its locks time out
ONE_PROCESS = (INFINITY,)  # its threads use all cores
NO_BINARY = {
    LITSERVE: "LitServe reads JSON and forms, no binary bodies",
    MLSERVER: "MLServer's REST API reads only JSON; binary tensors need gRPC",
}
# In float32, without a disk cache. BetterTransformer needs an older release of transformers;
# torch.compile made it no faster, and compiles again under load.
INFINITY_SETTINGS = (
    ("INFINITY_MODEL_ID", str(weights())),
    ("INFINITY_SERVED_MODEL_NAME", MINILM),
    ("INFINITY_ENGINE", "torch"),
    ("INFINITY_DEVICE", "cpu"),
    ("INFINITY_DTYPE", "float32"),
    ("INFINITY_COMPILE", "false"),
    ("INFINITY_BETTERTRANSFORMER", "false"),
    ("INFINITY_VECTOR_DISK_CACHE", "false"),
    ("INFINITY_ANONYMOUS_USAGE_STATS", "0"),
    ("INFINITY_LOG_LEVEL", "error"),
    ("INFINITY_HOST", "127.0.0.1"),
    ("INFINITY_PORT", "{port}"),
)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server, and the number of its processes that run the model."""

    server: str
    workers: int = 1

    @property
    def key(self) -> str:
        """Its name in the report: `mosec`, or `mosec*2` with two workers."""
        return self.server + (f"*{self.workers}" if self.workers > 1 else "")


@dataclass(frozen=True, slots=True)
class Serving:
    """The input of the servers.

    Attributes:
        folder: the artifact of one version.
        package: the folder from which our server runs; None: the checkout.
        before: another such folder.
    """

    folder: Path
    cores: Cores
    package: Path | None = None
    before: Path | None = None

    def package_of(self, server: str) -> Path | None:
        """Return the folder from which our server runs; None: the checkout."""
        return {PYTHON: None, BEFORE: self.before}.get(server, self.package)


def title_of(key: str) -> str:
    """Return the title of a server in the report."""
    server, _, workers = key.partition("*")
    return TITLES[server] + (f", {workers} workers" if workers else "")


def told_workers(ours: int) -> str:
    """Describe the workers of each server if all cores are shared."""
    others = " and ".join(map(str, SHARED_WORKERS))
    return f"workers of {TITLES[OURS]}: {ours}; of the others: {others}"


def contestants(
    workload: Workload, servers: tuple[str, ...], precisions: Container[str] = ()
) -> tuple[list[Contestant], dict[str, str]]:
    """Return the servers to measure with ours, and the reasons against others, by server.

    Args:
        workload: to measure.
        servers: the requested ones.
        precisions: those of the artifact.
    """
    others: list[Contestant] = []
    left_out: dict[str, str] = {}
    for server in workload.others:
        if server not in servers:
            continue
        reason = why_not(server)
        if reason is None and workload.body == "binary":
            reason = NO_BINARY.get(server)
        if reason is None and server in (INFINITY, PLAIN_ENCODER) and weights() is None:
            reason = f"the package {WEIGHTS} is not installed; torchlane[examples] has it"
        if server in PRECISIONS and PRECISIONS[server] not in precisions:
            reason = f"the artifact has no variant in {PRECISIONS[server]}"
        if reason is not None:
            left_out[server] = reason
            continue
        # with shared cores: one worker and several, because either may be better
        several = workload.shared and server not in (*OUR_OWN, *ONE_PROCESS)
        others += [Contestant(server, workers) for workers in (SHARED_WORKERS if several else (1,))]
    return others, left_out


def spec_of(contestant: Contestant, workload: Workload, serving: Serving) -> ServerSpec:
    """Return how to start a contestant for a workload."""
    core = None if workload.shared else serving.cores.server
    server = contestant.server
    if server in OUR_OWN:
        command: tuple[str, ...] = (sys.executable, "-m", "app")
        environment = own_environment(serving, serving.package_of(server))
        if server in PRECISIONS:
            environment += (("TORCHLANE_PLAN_PRECISION", PRECISIONS[server]),)
        if workload.body == "grpc":
            environment += (("TORCHLANE_GRPC_PORT", "{other_port}"),)
    else:
        command = _command(server)
        environment = (
            ("PYTHONPATH", str(ROOT)),
            ("BENCH_ARTIFACT", str(serving.folder)),
            ("BENCH_BODY", "any" if server in EITHER_BODY else workload.body),
            ("BENCH_PORT", "{port}"),
            ("BENCH_GRPC_PORT", "{other_port}"),
            ("BENCH_WORKERS", str(contestant.workers)),
        )
        if workload.is_text:
            environment += (("BENCH_WEIGHTS", str(weights())), ("HF_HUB_OFFLINE", "1"))
        if server == INFINITY:
            environment += INFINITY_SETTINGS
        if server == MLSERVER:
            parallel = contestant.workers if contestant.workers > 1 else 0
            environment += (
                ("MLSERVER_HTTP_PORT", "{port}"),
                ("MLSERVER_GRPC_PORT", "{other_port}"),
                ("MLSERVER_PARALLEL_WORKERS", str(parallel)),
            )
    key = OURS if server == NATIVE else contestant.key  # the same process, by other routes
    return ServerSpec(
        *(title_of(key), command, environment, READY_PATHS.get(server, "/"), core),
        sleeps=server not in SLEEPLESS,
    )


def own_environment(serving: Serving, package: Path | None) -> tuple[tuple[str, str], ...]:
    """Return the environment of our server.

    Args:
        serving: has the artifact.
        package: the folder to run from; None: the checkout.
    """
    model, repository = serving.folder.parent.name, serving.folder.parent.parent
    return (
        ("TORCHLANE_HOST", "127.0.0.1"),
        ("TORCHLANE_PORT", "{port}"),
        ("TORCHLANE_MODEL_DIR", str(repository)),
        ("TORCHLANE_DEFAULT_MODEL", model),
        ("CUDA_VISIBLE_DEVICES", ""),  # compare one core with one core, even if there is a GPU
        # without the second, Python would prefer packages in the working directory
        *((("PYTHONPATH", str(package)), ("PYTHONSAFEPATH", "1")) if package else ()),
    )


def _command(server: str) -> tuple[str, ...]:
    if server == MLSERVER:
        return (str(python_of(server)), "-m", "mlserver.cli.main", "start", str(PEERS / server))
    if server == INFINITY:
        return (str(python_of(server).with_name("infinity_emb")), "v2")
    python = str(python_of(server)) if server in WITH_ENVIRONMENT else sys.executable
    return (python, str(PEERS / server / "server.py"))
