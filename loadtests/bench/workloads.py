"""The workloads: the body, the number of connections, and the servers to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BodyKind = Literal["json", "binary", "grpc"]
ModelName = Literal["digits", "mean", "minilm"]
LimitKind = Literal["batch", "image", "text", "encoder"]
BATCH_ITEMS, BATCH_TEXTS = 64, 32
ZIPF_BODIES = 100
OURS, BARE = "torchlane", "bare_asgi"
# `torchlane` is what `make serve` starts, with default settings. The same server from the sources,
# and from another folder that `make compiled` built, for example from an earlier commit:
PYTHON, BEFORE = "torchlane_python", "torchlane_before"
NATIVE = "torchlane_native"  # with its own routes, if `torchlane` uses the Open Inference Protocol
BF16, INT8 = "torchlane_bf16", "torchlane_int8"
PRECISIONS = {BF16: "bf16", INT8: "int8"}  # the others compute in float32
OUR_OWN = (OURS, PYTHON, BEFORE, NATIVE, *PRECISIONS)
LIMIT = "limit"  # no server: only parsing and the forward
ENCODER_LIMIT = "limit_encoder"  # the same with sentence-transformers
MOSEC, PLAIN, LITSERVE, MLSERVER = "mosec", "plain_fastapi", "litserve", "mlserver"
PYTRITON, KSERVE = "pytriton", "kserve"
# For sentences; the second is plain FastAPI around sentence-transformers.
INFINITY, PLAIN_ENCODER = "infinity", "plain_encoder"
SINGLES = (MOSEC, PLAIN, LITSERVE, MLSERVER, BARE, PYTHON, BEFORE)
SERVERS = (*SINGLES, PYTRITON, KSERVE, NATIVE, INFINITY, PLAIN_ENCODER, *PRECISIONS)


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table.

    Attributes:
        name: as on the command line.
        title: for people.
        body: the format of the request.
        connections: of the closed loop.
        others: the servers to measure with ours.
        items: per request.
        model: the served model: `mean` accepts 3x224x224 numbers and has no weights, `minilm`
            accepts sentences.
        repeated: number of different bodies, drawn by Zipf's law and all cached; 0: none repeats.
        shared: server and generator share all cores, and nothing is pinned.
        checks_per_s: known requests sent with the load.
        limit: the kind that `loadtests.bench.limits` measures for it, if any.
        v2: ours is called with the Open Inference Protocol, with binary answers to binary requests.
    """

    name: str
    title: str
    body: BodyKind
    connections: int
    others: tuple[str, ...]
    items: int = 1
    model: ModelName = "digits"
    repeated: int = 0
    shared: bool = False
    checks_per_s: float = 20.0
    limit: LimitKind | None = None
    v2: bool = False

    @property
    def is_text(self) -> bool:
        """Whether items are sentences; ours is then called with OpenAI's API, like infinity."""
        return self.model == "minilm"


JSON_32 = Workload("json-32", "single JSON, 32 connections", "json", 32, SINGLES)
WORKLOADS: tuple[Workload, ...] = (
    JSON_32,
    Workload("json-128", "single JSON, 128 connections", "json", 128, SINGLES),
    Workload("binary-32", "single binary, 32 connections", "binary", 32, SINGLES),
    Workload("binary-128", "single binary, 128 connections", "binary", 128, SINGLES),
    Workload(
        "json-64-shared",
        "single JSON, 64 connections, cores shared with the load",
        "json",
        64,
        (MOSEC, PLAIN, LITSERVE, MLSERVER, PYTHON, BEFORE),
        shared=True,
    ),
    Workload(
        "batch-json",
        f"one request of {BATCH_ITEMS} items, JSON, 4 connections",
        "json",
        4,
        (MOSEC, PLAIN, LITSERVE, MLSERVER, PYTHON, BEFORE),
        items=BATCH_ITEMS,
        checks_per_s=4.0,
        limit="batch",
    ),
    Workload(
        "batch-binary",
        f"one request of {BATCH_ITEMS} items, binary, 4 connections",
        "binary",
        4,
        (MOSEC, PLAIN, LITSERVE, MLSERVER, PYTHON, BEFORE),
        items=BATCH_ITEMS,
        checks_per_s=4.0,
    ),
    Workload(
        "zipf",
        f"repeated inputs, all cached (Zipf over {ZIPF_BODIES}), 32 connections",
        "json",
        32,
        (BARE, PYTHON),
        repeated=ZIPF_BODIES,
    ),
    Workload(
        "one-connection",
        "one connection, JSON",
        "json",
        1,
        (PLAIN, MOSEC, LITSERVE, MLSERVER, PYTHON),
        checks_per_s=2.0,  # each delays the only connection
    ),
    Workload(
        "image-binary",
        "3x224x224 binary bodies (602 KB), 32 connections",
        "binary",
        32,
        (MOSEC, PLAIN, LITSERVE, MLSERVER, BARE, PYTHON),
        model="mean",
        checks_per_s=4.0,
        limit="image",
    ),
    Workload(
        "v2-json-32",
        "Open Inference Protocol v2, single JSON, 32 connections",
        "json",
        32,
        (NATIVE, MLSERVER, KSERVE, PYTRITON),
        v2=True,
    ),
    Workload(
        "v2-binary-32",
        "Open Inference Protocol v2, single binary, 32 connections",
        "binary",
        32,
        (NATIVE, PYTRITON),
        v2=True,
    ),
    Workload(
        "v2-batch-binary",
        f"Open Inference Protocol v2, one request of {BATCH_ITEMS} items, binary, 4 connections",
        "binary",
        4,
        (NATIVE, PYTRITON),
        items=BATCH_ITEMS,
        checks_per_s=4.0,
        v2=True,
    ),
    Workload(
        "v2-grpc-32",
        "Open Inference Protocol v2, single by gRPC, 32 calls at a time over 4 connections",
        "grpc",
        32,
        (PYTRITON,),
        v2=True,
    ),
    Workload(
        "text-32",
        "single sentences, 32 connections",
        "json",
        32,
        (INFINITY, PLAIN_ENCODER, NATIVE, INT8, BF16),
        model="minilm",
        checks_per_s=4.0,
        limit="text",
    ),
    Workload(
        "text-32-shared",
        "single sentences, 32 connections, cores shared with the load",
        "json",
        32,
        (INFINITY, PLAIN_ENCODER, INT8),
        model="minilm",
        shared=True,
        checks_per_s=4.0,
    ),
    Workload(
        "text-zipf-32",
        f"repeated sentences, all cached (Zipf over {ZIPF_BODIES}), 32 connections",
        "json",
        32,
        (INFINITY, NATIVE),
        model="minilm",
        repeated=ZIPF_BODIES,
        checks_per_s=4.0,
    ),
    Workload(
        "text-batch",
        f"one request of {BATCH_TEXTS} sentences, 4 connections",
        "json",
        4,
        (INFINITY, PLAIN_ENCODER, NATIVE, INT8, BF16),
        items=BATCH_TEXTS,
        model="minilm",
        checks_per_s=1.0,
    ),
)
NAMES = tuple(workload.name for workload in WORKLOADS)
QUICK = ("json-32", "json-128", "binary-32", "batch-json", "zipf", "v2-binary-32")
QUICK_SERVERS = (MOSEC, BARE, NATIVE)


def chosen(names: Sequence[str]) -> tuple[Workload, ...]:
    """Return the workloads with these names, in the order of the table."""
    return tuple(workload for workload in WORKLOADS if workload.name in names)
