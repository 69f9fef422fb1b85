"""Clusters of Ray, small and on the loopback interface only; runs where Ray is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "TORCHLANE_CPU_THREADS": "1"}
# Ray takes 127.0.0.1 for "this machine" and looks for an address that others can reach.
ADDRESSES = ("127.0.0.2", "127.0.0.3")
TRIES = 4
NODE = {"num_cpus": 1, "object_store_memory": 200 << 20, "include_dashboard": False}


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Any, Any]]:
    """A cluster, and its second node; all its processes end."""
    os.environ.update(ALONE)
    # Not at the top: the variables come first.
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    first, second = ({**NODE, "node_ip_address": each} for each in ADDRESSES)
    cluster = Cluster()
    try:
        _start(cluster, first)
        yield cluster, _start(cluster, second)
    finally:
        cluster.shutdown()


def _start(cluster: Any, node: dict[str, Any]) -> Any:
    """A node; Ray gives it 30 s, which is too little on a busy machine."""
    for left in reversed(range(TRIES)):
        try:
            return cluster.add_node(**node)
        except Exception:
            if not left:
                raise
    raise AssertionError("not reached")
