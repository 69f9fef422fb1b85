"""The workloads: the body, the number of connections, and the servers to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BodyKind = Literal["json", "binary"]
DIGITS, MINILM = "digits", "minilm"  # models of the catalog
BATCH_ITEMS, BATCH_TEXTS = 64, 32
ZIPF_BODIES = 100
# `torchlane` is what `make serve` starts, with default settings; `before` runs from another folder
# that `make compiled` built, for example from an earlier commit; `native` is the same process as
# `torchlane` in workloads of the Open Inference Protocol, asked through its own routes.
OURS, BEFORE, NATIVE = "torchlane", "torchlane_before", "torchlane_native"
OUR_OWN = (OURS, BEFORE, NATIVE)
MOSEC, PLAIN, LITSERVE, BARE = "mosec", "plain_fastapi", "litserve", "bare_asgi"
PYTRITON, INFINITY = "pytriton", "infinity"  # for the Open Inference Protocol, and for sentences
ONNX = "fastapi_onnx"  # only for real networks: see loadtests/networks
SERVERS = (MOSEC, PLAIN, LITSERVE, BARE, PYTRITON, NATIVE, INFINITY)


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
        model: the served model.
        repeated: number of different bodies, drawn by Zipf's law and all cached; 0: none repeats.
        shared: server and generator share all cores, and nothing is pinned.
        v2: ours is called with the Open Inference Protocol, with binary answers to binary requests.
    """

    name: str
    title: str
    body: BodyKind
    connections: int
    others: tuple[str, ...]
    items: int = 1
    model: str = DIGITS
    repeated: int = 0
    shared: bool = False
    v2: bool = False

    @property
    def is_text(self) -> bool:
        """Whether items are sentences; ours is then called with OpenAI's API, like infinity."""
        return self.model == MINILM


JSON_PEERS, BINARY_PEERS = (MOSEC, PLAIN, LITSERVE), (MOSEC, PLAIN)  # LitServe reads no raw bytes
BATCH, V2 = f"one request of {BATCH_ITEMS} items", "Open Inference Protocol v2"
TEXTS = f"one request of {BATCH_TEXTS} sentences, 4 connections"
WORKLOADS: tuple[Workload, ...] = (
    Workload("json-32", "single JSON, 32 connections", "json", 32, (*JSON_PEERS, BARE)),
    Workload("json-128", "single JSON, 128 connections", "json", 128, (*JSON_PEERS, BARE)),
    Workload("binary-32", "single binary, 32 connections", "binary", 32, (*BINARY_PEERS, BARE)),
    Workload("binary-128", "single binary, 128 connections", "binary", 128, (*BINARY_PEERS, BARE)),
    Workload(
        "json-64-shared",
        "single JSON, 64 connections, cores shared with the load",
        *("json", 64, JSON_PEERS),
        shared=True,
    ),
    Workload(
        *("batch-json", f"{BATCH}, JSON, 4 connections", "json", 4, JSON_PEERS),
        items=BATCH_ITEMS,
    ),
    Workload(
        *("batch-binary", f"{BATCH}, binary, 4 connections", "binary", 4, BINARY_PEERS),
        items=BATCH_ITEMS,
    ),
    Workload(
        "zipf",
        f"repeated inputs, all cached (Zipf over {ZIPF_BODIES}), 32 connections",
        *("json", 32, (BARE,)),
        repeated=ZIPF_BODIES,
    ),
    Workload(
        *("one-connection", "one connection, JSON", "json", 1, JSON_PEERS),
    ),
    Workload(
        *("v2-json-32", f"{V2}, single JSON, 32 connections", "json", 32, (NATIVE, PYTRITON)),
        v2=True,
    ),
    Workload(
        *("v2-binary-32", f"{V2}, single binary, 32 connections", "binary", 32),
        (NATIVE, PYTRITON),
        v2=True,
    ),
    Workload(
        *("v2-batch-binary", f"{V2}, {BATCH}, binary, 4 connections", "binary", 4),
        (NATIVE, PYTRITON),
        items=BATCH_ITEMS,
        v2=True,
    ),
    Workload(
        *("text-32", "single sentences, 32 connections", "json", 32, (INFINITY, NATIVE)),
        model=MINILM,
    ),
    Workload(
        *("text-batch", TEXTS, "json", 4, (INFINITY, NATIVE)),
        items=BATCH_TEXTS,
        model=MINILM,
    ),
)
NAMES = tuple(workload.name for workload in WORKLOADS)
QUICK = ("json-32", "json-128", "binary-32", "batch-json", "zipf", "v2-binary-32")
QUICK_SERVERS = (MOSEC, BARE, NATIVE)


def select(names: Sequence[str]) -> tuple[Workload, ...]:
    """Return the workloads with these names, in the order of the table."""
    return tuple(workload for workload in WORKLOADS if workload.name in names)
